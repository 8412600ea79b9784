// Retries: waits of 1, 2, 4, … s, each ±20 %, or what the receiver asks for; all tries of a request together take at
// most its signal's timeout. The first try may take half of that, so that a connection that hangs leaves time for a
// second one.
#include "pharos/lens/otlp/sender.h"

#include <curl/curl.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/lens/otlp/transfer.h"
#include "pharos/lens/otlp/url.h"

namespace pharos::lens::otlp {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstBackoff{1000};
constexpr milliseconds kLongestBackoff{32000};
/// With less time left, a try is not begun: it would only fail and hide why the ones before did.
constexpr milliseconds kShortestTry{100};

/// OpenSSL writes to sockets without MSG_NOSIGNAL, and with CURLOPT_NOSIGNAL libcurl does not shield it: a receiver
/// that hangs up would end the process. A SIGPIPE that comes from here goes to this thread and is eaten.
class SigpipeShield {
 public:
  SigpipeShield() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &previous_);
  }
  ~SigpipeShield() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  SigpipeShield(const SigpipeShield&) = delete;

 private:
  sigset_t sigpipe_;
  sigset_t previous_;
  bool was_pending_;
};

/// One export with all its tries. Waits for `next_try` while it has no transfer.
struct Request {
  Signal signal;
  std::string body;
  std::uint64_t num_items;
  Sender::Done done;
  Clock::time_point start;
  Clock::time_point deadline;
  Clock::time_point next_try;
  int num_tries = 0;
  bool needs_new_connection = false;
  std::string last_fault = {};  ///< why the last try did not succeed
  std::unique_ptr<Transfer> transfer = nullptr;
};

/// A request that is over; its callback is called when nothing refers to the request any more.
struct Finished {
  Sender::Done done;
  Outcome outcome;
};

std::string in_seconds(std::chrono::nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

Outcome failed(const Request& request, std::string message) {
  return {.accepted = 0, .rejected = 0, .failed = request.num_items, .message = std::move(message)};
}

Outcome delivered(const Request& request, Verdict verdict) {
  const std::uint64_t rejected = std::min(verdict.num_rejected, request.num_items);
  return {.accepted = request.num_items - rejected,
          .rejected = rejected,
          .failed = 0,
          .message = std::move(verdict.message)};
}

/// For someone who reads only the message: what to look at when no answer came.
std::string advice(Signal signal) {
  std::string name = signal_name(signal);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::toupper(c); });
  return "; is a receiver of OTLP up there? OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_" + name +
         "_ENDPOINT says where to send";
}

void initialise_libcurl() {
  static std::once_flag once;
  std::call_once(once, [] {
    const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    PHAROS_CHECK(code == CURLE_OK, std::string("libcurl: ") + curl_easy_strerror(code));
  });
}

}  // namespace

struct Sender::State {
  explicit State(Options given) : options(std::move(given)) {
    initialise_libcurl();
    multi = curl_multi_init();
    PHAROS_CHECK(multi != nullptr, "libcurl has no memory for transfers");
  }
  ~State() {
    const SigpipeShield shield;
    curl_multi_cleanup(multi);
  }
  State(const State&) = delete;

  const SignalOptions& options_of(const Request& request) const {
    return options[static_cast<std::size_t>(request.signal)];
  }

  void start_due_tries();
  void start_try(Request& request, Clock::time_point now);
  void take_results(std::vector<Finished>& finished);
  std::optional<Outcome> judge_try(Request& request, CURLcode code);
  std::optional<Outcome> schedule_retry(Request& request, const Verdict& verdict);
  std::string describe_cancelled(const Request& request) const;
  milliseconds until_next_try(milliseconds wait) const;
  milliseconds backoff(int num_tries);

  Options options;
  CURLM* multi = nullptr;
  std::list<Request> requests;
  std::minstd_rand random{std::random_device{}()};
};

void Sender::State::start_due_tries() {
  const auto now = Clock::now();
  for (Request& request : requests) {
    if (!request.transfer && request.next_try <= now) start_try(request, now);
  }
}

void Sender::State::start_try(Request& request, Clock::time_point now) {
  const SignalOptions& signal_options = options_of(request);
  const auto left = std::chrono::duration_cast<milliseconds>(request.deadline - now);
  const milliseconds limit = request.num_tries == 0 ? signal_options.timeout / 2 : left;
  ++request.num_tries;
  request.transfer = std::make_unique<Transfer>(signal_options, request.signal, request.body,
                                                std::max(limit, milliseconds(1)), request.needs_new_connection);
  const CURLMcode code = curl_multi_add_handle(multi, request.transfer->handle());
  PHAROS_CHECK(code == CURLM_OK, std::string("libcurl: ") + curl_multi_strerror(code));
}

void Sender::State::take_results(std::vector<Finished>& finished) {
  int num_left = 0;
  while (CURLMsg* const message = curl_multi_info_read(multi, &num_left)) {
    if (message->msg != CURLMSG_DONE) continue;
    CURL* const handle = message->easy_handle;
    const CURLcode code = message->data.result;  // the message does not outlive the next call
    const auto request = std::find_if(requests.begin(), requests.end(), [handle](const Request& candidate) {
      return candidate.transfer && candidate.transfer->handle() == handle;
    });
    PHAROS_CHECK(request != requests.end(), "libcurl finished a transfer that was not started");
    std::optional<Outcome> outcome = judge_try(*request, code);
    curl_multi_remove_handle(multi, handle);
    request->transfer.reset();
    if (!outcome) continue;
    finished.push_back({std::move(request->done), std::move(*outcome)});
    requests.erase(request);
  }
}

/// Nothing when there will be another try.
std::optional<Outcome> Sender::State::judge_try(Request& request, CURLcode code) {
  Verdict verdict = request.transfer->verdict(code);
  if (!verdict.message.empty()) verdict.message += " (" + printable_url(options_of(request).url) + ")";
  if (verdict.fate == Fate::kDelivered) return delivered(request, std::move(verdict));
  if (verdict.fate == Fate::kRefused) return failed(request, std::move(verdict.message));
  request.needs_new_connection = code != CURLE_OK;
  if (request.needs_new_connection) verdict.message += advice(request.signal);
  request.last_fault = verdict.message;
  return schedule_retry(request, verdict);
}

std::optional<Outcome> Sender::State::schedule_retry(Request& request, const Verdict& verdict) {
  const auto now = Clock::now();
  const bool is_asked = verdict.retry_after && verdict.retry_after->count() > 0;
  const milliseconds wait = is_asked ? *verdict.retry_after : backoff(request.num_tries);
  if (now + wait + kShortestTry <= request.deadline) {
    request.next_try = now + wait;
    return std::nullopt;
  }
  std::string message = "gave up after " + std::to_string(request.num_tries) +
                        (request.num_tries == 1 ? " try in " : " tries in ") + in_seconds(now - request.start);
  if (is_asked) message += ", the receiver asks to wait for " + in_seconds(wait);
  return failed(request, message + " (limit " + in_seconds(request.deadline - request.start) + "): " + verdict.message);
}

milliseconds Sender::State::backoff(int num_tries) {
  const milliseconds base = std::min(kFirstBackoff * (1 << std::min(num_tries - 1, 6)), kLongestBackoff);
  std::uniform_real_distribution<double> jitter(0.8, 1.2);
  return milliseconds(static_cast<std::int64_t>(static_cast<double>(base.count()) * jitter(random)));
}

milliseconds Sender::State::until_next_try(milliseconds wait) const {
  const auto now = Clock::now();
  for (const Request& request : requests) {
    if (request.transfer) continue;
    const auto left = std::chrono::ceil<milliseconds>(request.next_try - now);
    wait = std::clamp(left, milliseconds(0), wait);
  }
  return wait;
}

std::string Sender::State::describe_cancelled(const Request& request) const {
  const std::string message = "cancelled after " + in_seconds(Clock::now() - request.start);
  if (!request.last_fault.empty()) return message + ": " + request.last_fault;
  return message + " without an answer (" + printable_url(options_of(request).url) + ")" + advice(request.signal);
}

Sender::Sender(Options options) : state_(std::make_unique<State>(std::move(options))) {}

Sender::~Sender() { cancel(); }

bool Sender::has_room(Signal signal) const {
  const auto is_same = [signal](const Request& request) { return request.signal == signal; };
  return std::count_if(state_->requests.begin(), state_->requests.end(), is_same) < kMaxInFlight;
}

void Sender::submit(Signal signal, std::string body, std::uint64_t num_items, Done done) {
  const SignalOptions& options = state_->options[static_cast<std::size_t>(signal)];
  const auto now = Clock::now();
  state_->requests.push_back({.signal = signal,
                              .body = make_body(options, std::move(body)),
                              .num_items = num_items,
                              .done = std::move(done),
                              .start = now,
                              .deadline = now + options.timeout,
                              .next_try = now});
}

void Sender::pump(milliseconds wait) {
  std::vector<Finished> finished;
  {
    const SigpipeShield shield;
    int num_running = 0;
    state_->start_due_tries();
    curl_multi_perform(state_->multi, &num_running);
    state_->take_results(finished);
    if (finished.empty()) {
      wait = state_->until_next_try(std::max(wait, milliseconds(0)));
      curl_multi_poll(state_->multi, nullptr, 0, static_cast<int>(wait.count()), nullptr);
      state_->start_due_tries();
      curl_multi_perform(state_->multi, &num_running);
      state_->take_results(finished);
    }
  }
  for (const Finished& one : finished) one.done(one.outcome);  // may submit: state_ is in order by now
}

void Sender::wake() { curl_multi_wakeup(state_->multi); }

bool Sender::is_idle() const { return state_->requests.empty(); }

void Sender::cancel() {
  std::list<Request> requests = std::move(state_->requests);
  state_->requests.clear();
  std::vector<Finished> finished;
  {
    const SigpipeShield shield;
    for (Request& request : requests) {
      if (request.transfer) {
        curl_multi_remove_handle(state_->multi, request.transfer->handle());
        request.transfer.reset();
      }
      finished.push_back({std::move(request.done), failed(request, state_->describe_cancelled(request))});
    }
  }
  for (const Finished& one : finished) one.done(one.outcome);
}

}  // namespace pharos::lens::otlp

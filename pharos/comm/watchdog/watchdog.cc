#include "pharos/comm/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/text.h"
#include "pharos/comm/flight/writer.h"
#include "pharos/comm/watchdog/thread_stack.h"
#include "pharos/lens/life/quiet_thread.h"

namespace pharos::comm {
namespace {

using std::chrono::milliseconds;

std::int64_t ns_of(milliseconds duration) { return std::chrono::nanoseconds(duration).count(); }

double seconds(std::int64_t duration_ns) { return static_cast<double>(duration_ns) * 1e-9; }

nlohmann::ordered_json json_of(const Flight& flight, std::int64_t now_ns) {
  nlohmann::ordered_json json{{"group", flight.group},
                              {"ranks", flight.ranks},
                              {"number", flight.number},
                              {"operation", operation_name(flight.operation)},
                              {"purpose", flight.purpose},
                              {"bytes", flight.bytes},
                              {"came_seconds_ago", seconds(now_ns - flight.arrival_ns)}};
  if (flight.peer >= 0) json["peer"] = flight.peer;
  if (flight.wait_ns != 0) json["waited_for_since_seconds"] = seconds(now_ns - flight.wait_ns);
  if (flight.end_ns != 0) json["ended_seconds_ago"] = seconds(now_ns - flight.end_ns);
  return json;
}

}  // namespace

std::string hang_file_name(std::int64_t rank) {
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "rank_%05lld.hang.json", static_cast<long long>(rank));
  return text.data();
}

Watchdog::Watchdog(WatchdogOptions options)
    : options_(std::move(options)),
      step_timeout_(options_.step_timeout),
      start_ns_(base::monotonic_ns()),
      watched_(::pthread_self()) {
  PHAROS_CHECK(
      options_.set_up_timeout.count() > 0 && options_.step_timeout.count() > 0 && options_.save_timeout.count() > 0,
      "the time-outs of a watchdog must be positive");
  prepare_thread_stack();
  thread_ = lens::internal::start_quiet_thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::set_step_timeout(milliseconds timeout) {
  PHAROS_CHECK(timeout.count() > 0, "the time-outs of a watchdog must be positive");
  step_timeout_ = timeout;
}

void Watchdog::watch() {
  // Often enough to be late by a tenth of a short time-out, seldom enough to cost nothing.
  const auto shortest = std::min(options_.set_up_timeout, options_.step_timeout);
  const auto pause = std::clamp(shortest / 10, milliseconds(10), milliseconds(1000));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [this] { return is_leaving_; })) {
    const auto now = base::monotonic_ns();
    if (auto* writer = FlightWriter::current()) writer->show_life(now);
    milliseconds timeout;
    const auto reason = find_reason(now, timeout);
    if (reason.empty()) continue;
    lock.unlock();
    trip(reason, timeout, now);
    return;
  }
}

std::string Watchdog::find_reason(std::int64_t now_ns, milliseconds& timeout) const {
  const auto progress = last_progress();
  timeout = progress.step == 0         ? options_.set_up_timeout
            : progress.phase == "save" ? options_.save_timeout
                                       : step_timeout_.load();
  const auto last = std::max(progress.progress_ns, start_ns_);
  if (now_ns - last >= ns_of(timeout)) return "no progress";
  const auto* writer = FlightWriter::current();
  if (writer == nullptr) return "";
  for (const auto& flight : writer->read().flights) {
    if (flight.is_pending() && flight.wait_ns != 0 && now_ns - std::max(flight.wait_ns, start_ns_) >= ns_of(timeout)) {
      return flight.group + " call " + std::to_string(flight.number) + " (" + operation_name(flight.operation) + " \"" +
             flight.purpose + "\") does not end";
    }
  }
  return "";
}

std::string Watchdog::describe(const std::string& reason, milliseconds timeout, std::int64_t now_ns) const {
  const auto progress = last_progress();
  RankState state;
  if (const auto* writer = FlightWriter::current()) state = writer->read();
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  nlohmann::ordered_json json{{"rank", options_.rank},
                              {"host", host.data()},
                              {"pid", ::getpid()},
                              {"reason", reason},
                              {"phase", progress.phase},
                              {"step", progress.step},
                              {"activity", state.activity},
                              {"seconds_without_progress", seconds(now_ns - std::max(progress.progress_ns, start_ns_))},
                              {"timeout_s", seconds(ns_of(timeout))},
                              {"pending", nlohmann::ordered_json::array()},
                              {"finished", nlohmann::ordered_json::array()}};
  constexpr std::ptrdiff_t kMostFinished = 16;
  std::vector<Flight> finished;
  for (auto& flight : state.flights) {
    if (flight.is_pending()) {
      json["pending"].push_back(json_of(flight, now_ns));
    } else {
      finished.push_back(std::move(flight));
    }
  }
  const auto num_old = std::max<std::ptrdiff_t>(0, std::ssize(finished) - kMostFinished);
  for (auto flight = finished.begin() + num_old; flight != finished.end(); ++flight) {
    json["finished"].push_back(json_of(*flight, now_ns));
  }
  json["stack"] = thread_stack(watched_);
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void Watchdog::trip(const std::string& reason, milliseconds timeout, std::int64_t now_ns) {
  const auto text = describe(reason, timeout, now_ns);
  const auto path = options_.folder / hang_file_name(options_.rank);
  std::string told = "its state is in " + path.string();
  try {
    base::write_file_atomically(path, text);
  } catch (const std::exception& error) {
    told = std::string("its state could not be written: ") + error.what();
  }
  if (options_.on_hang) return options_.on_hang(text);
  const auto line = "pharos: rank " + std::to_string(options_.rank) + " hangs: " + reason + " within " +
                    base::format_duration(ns_of(timeout)) + "; " + told + "\n";
  // The process is in a state nobody knows: no destructors, no handlers of exit, no stream that a thread may hold.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(static_cast<int>(base::ExitCode::kTrainingFailure));
}

}  // namespace pharos::comm

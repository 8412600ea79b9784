#include "pharos/launch/doctor/bounded.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

constexpr std::int64_t kMillisecondNs = 1'000'000;
constexpr int kDeliveredCode = 0;

void write_all(int descriptor, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count < 0 && errno != EINTR) return;
    if (count > 0) done += static_cast<std::size_t>(count);
  }
}

[[noreturn]] void be_child(const std::function<nlohmann::json()>& call, int descriptor, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_DFL);
  nlohmann::json answer;
  try {
    answer["value"] = call();
  } catch (const std::exception& error) {
    answer["error"] = error.what();
  }
  write_all(descriptor, answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  ::_exit(kDeliveredCode);
}

/// What the child wrote, or nothing when it did not close its end in time.
std::optional<std::string> read_until(int descriptor, std::int64_t deadline_ns) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const std::int64_t left_ns = deadline_ns - base::monotonic_ns();
    pollfd wait{.fd = descriptor, .events = POLLIN, .revents = 0};
    const int left_ms =
        static_cast<int>(std::clamp<std::int64_t>((left_ns + kMillisecondNs - 1) / kMillisecondNs, 0, 60'000));
    const int ready = ::poll(&wait, 1, left_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 && base::monotonic_ns() >= deadline_ns) return std::nullopt;
    if (ready <= 0) continue;
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::string describe(int status) {
  if (WIFSIGNALED(status)) return std::string("it was ended by ") + ::strsignal(WTERMSIG(status));
  return "it left with code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

BoundedCall::BoundedCall(const std::function<nlohmann::json()>& call) {
  std::array<int, 2> ends{};
  const pid_t parent = ::getpid();
  if (::pipe2(ends.data(), O_CLOEXEC) != 0 || (child_ = ::fork()) < 0) {
    throw base::UserError({.what = std::string("Cannot start a process for a check: ") + std::strerror(errno) + ".",
                           .fix = "Raise the limits of processes and open files (ulimit -u, ulimit -n)."});
  }
  if (child_ == 0) {
    ::close(ends[0]);
    be_child(call, ends[1], parent);
  }
  ::close(ends[1]);
  pipe_ = ends[0];
}

BoundedCall::BoundedCall(BoundedCall&& other) noexcept
    : child_(std::exchange(other.child_, -1)), pipe_(std::exchange(other.pipe_, -1)) {}

BoundedCall::~BoundedCall() { end_child(); }

/// A child inside a dead file system does not die even of SIGKILL, so it is waited for only briefly.
void BoundedCall::end_child() {
  if (pipe_ >= 0) ::close(std::exchange(pipe_, -1));
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  for (int i = 0; i < 50 && ::waitpid(child_, nullptr, WNOHANG) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  child_ = -1;
}

BoundedResult BoundedCall::wait(std::int64_t deadline_ns) {
  using End = BoundedResult::End;
  const auto text = read_until(pipe_, deadline_ns);
  if (!text) {
    end_child();
    return {.end = End::kTimedOut, .value = {}, .text = "timed out"};
  }
  nlohmann::json answer = nlohmann::json::parse(*text, nullptr, false);
  int status = 0;
  while (::waitpid(child_, &status, 0) < 0 && errno == EINTR) {
  }
  child_ = -1;
  if (answer.is_discarded()) return {.end = End::kDied, .value = {}, .text = describe(status)};
  if (answer.contains("error")) return {.end = End::kThrew, .value = {}, .text = answer["error"].get<std::string>()};
  return {.end = End::kDone, .value = std::move(answer["value"]), .text = {}};
}

}  // namespace pharos::launch

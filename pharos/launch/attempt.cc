#include "pharos/launch/attempt.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"

namespace pharos::launch {
namespace {

std::int64_t to_ns(std::chrono::milliseconds duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

/// The earlier of a time that may be set and `time_ns`.
void set_earlier(std::optional<std::int64_t>& deadline, std::int64_t time_ns) {
  deadline = std::min(deadline.value_or(time_ns), time_ns);
}

/// Whether the process stands still: state T or t of /proc/PID/stat, which follows the name in parentheses.
bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t at = line.rfind(") ");
  return at != std::string::npos && at + 2 < line.size() && (line[at + 2] == 'T' || line[at + 2] == 't');
}

}  // namespace

void Attempt::start(std::int64_t rank, const ProcessOptions& options) {
  const pid_t pid = start_process(options);
  ranks_.push_back({.end = {.rank = rank, .pid = pid}});
}

void Attempt::kill_all() {
  for (Rank& rank : ranks_) {
    if (!rank.is_running) continue;
    rank.end.was_told_to = true;
    kill(-rank.end.pid, SIGKILL);
    kill(rank.end.pid, SIGKILL);  // it may not have its own group yet
  }
}

std::vector<RankEnd> Attempt::run() {
  reap();
  while (is_any_running()) {
    if (const std::optional<int> signal = signals_.wait_until(next_deadline())) handle(*signal);
    act_on_deadlines();
  }
  return ends();
}

std::vector<RankEnd> Attempt::ends() const {
  std::vector<RankEnd> ends;
  for (const Rank& rank : ranks_) ends.push_back(rank.end);
  return ends;
}

Attempt::Rank* Attempt::find(pid_t pid) {
  const auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [pid](const Rank& rank) { return rank.end.pid == pid; });
  return found == ranks_.end() ? nullptr : &*found;
}

bool Attempt::is_any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.is_running; });
}

void Attempt::send_to_running(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.is_running) kill(rank.end.pid, signal);
  }
}

void Attempt::handle(int signal) {
  switch (signal) {
    case SIGCHLD:
      return reap();
    case SIGTSTP:
      return stop_and_continue();
    case SIGCONT:
      return send_to_running(SIGCONT);
    default:
      return pass_on(signal);
  }
}

void Attempt::pass_on(int signal) {
  passed_on_.insert(signal);
  send_to_running(signal);
  if (!asks_to_end(signal)) return;
  was_asked_to_end_ = true;
  if (signal != SIGINT) return;
  if (++num_interrupts_ == 1) first_interrupt_ns_ = base::monotonic_ns();
  if (num_interrupts_ > 1) set_earlier(kill_ns_, first_interrupt_ns_ + to_ns(patience_.after_two_interrupts));
}

/// Ctrl-Z reaches only the launcher, which is alone in its process group.
void Attempt::stop_and_continue() {
  send_to_running(SIGSTOP);
  raise(SIGSTOP);  // goes on here after SIGCONT, which is in the queue then
}

void Attempt::reap() {
  const std::int64_t now = base::monotonic_ns();
  while (true) {
    siginfo_t info = {};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    Rank* rank = find(info.si_pid);
    // What it started is of no use without it. While the zombie holds its number, the group can be no other's.
    if (rank != nullptr) kill(-info.si_pid, SIGKILL);
    int status = 0;
    if (waitpid(info.si_pid, &status, 0) != info.si_pid || rank == nullptr) continue;
    rank->is_running = false;
    if (WIFSIGNALED(status)) rank->end.signal = WTERMSIG(status);
    if (WIFEXITED(status)) rank->end.code = WEXITSTATUS(status);
    note_end(rank->end, now);
  }
}

void Attempt::note_end(RankEnd& end, std::int64_t time_ns) {
  end.time_ns = time_ns;
  end.was_passed_on = end.signal != 0 && passed_on_.contains(end.signal);
  if (is_failure(end)) {
    set_earlier(terminate_ns_, time_ns + to_ns(patience_.after_failure));
    if (!has_failed_ && on_failure_) on_failure_(ends());
    has_failed_ = true;
  } else if (end.code == static_cast<int>(base::ExitCode::kInterrupted)) {
    set_earlier(terminate_ns_, time_ns + to_ns(patience_.after_interruption));
  }
}

void Attempt::act_on_deadlines() {
  const std::int64_t now = base::monotonic_ns();
  if (terminate_ns_ && *terminate_ns_ <= now) {
    terminate_ns_.reset();
    for (Rank& rank : ranks_) {
      if (!rank.is_running) continue;
      rank.end.was_stopped = is_stopped(rank.end.pid);
      rank.end.was_told_to = true;
    }
    send_to_running(SIGTERM);
    set_earlier(kill_ns_, now + to_ns(patience_.after_terminate));
  }
  if (kill_ns_ && *kill_ns_ <= now) {
    kill_ns_.reset();
    kill_all();
  }
}

std::optional<std::int64_t> Attempt::next_deadline() const {
  if (!terminate_ns_ || !kill_ns_) return terminate_ns_ ? terminate_ns_ : kill_ns_;
  return std::min(*terminate_ns_, *kill_ns_);
}

}  // namespace pharos::launch

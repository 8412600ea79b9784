// One attempt of a job: all its ranks from start to end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "pharos/launch/rank_end.h"
#include "pharos/launch/rank_process.h"
#include "pharos/launch/signals.h"

namespace pharos::launch {

/// How long the launcher waits for what.
struct Patience {
  /// Others after a rank failed, until SIGTERM: they usually see the broken connection and say so.
  std::chrono::milliseconds after_failure = std::chrono::seconds(2);
  /// After SIGTERM until SIGKILL.
  std::chrono::milliseconds after_terminate = std::chrono::milliseconds(1500);
  /// Others after a rank left with 4 (interrupted and saved, which all ranks agree on), until SIGTERM.
  std::chrono::milliseconds after_interruption = std::chrono::seconds(30);
  /// From the first of two or more SIGINT until SIGKILL. After one alone there is no limit: a checkpoint is being
  /// saved. Nor after any number of SIGTERM, which a scheduler repeats; it has its own way to make an end.
  std::chrono::milliseconds after_two_interrupts = std::chrono::seconds(30);
};

/// The ranks of one attempt. Every rank that was started has ended and was reaped when run() returns.
class Attempt {
 public:
  /// `on_failure` is called when the first failure is seen, with all ranks as they are then (`time_ns` 0: still
  /// running).
  Attempt(SignalQueue& signals, const Patience& patience,
          std::function<void(const std::vector<RankEnd>&)> on_failure = nullptr)
      : signals_(signals), patience_(patience), on_failure_(std::move(on_failure)) {}

  /// Starts one rank. On a UserError of a later one, those that run are killed by run().
  void start(std::int64_t rank, const ProcessOptions& options);
  /// Sends SIGKILL to all that run.
  void kill_all();
  /// Waits until all have ended, passing on signals and ending those that outlive a failed rank.
  std::vector<RankEnd> run();
  /// Whether a signal came that asks the job to end.
  bool was_asked_to_end() const { return was_asked_to_end_; }

 private:
  struct Rank {
    RankEnd end;
    bool is_running = true;
  };
  Rank* find(pid_t pid);
  std::vector<RankEnd> ends() const;
  bool is_any_running() const;
  void handle(int signal);
  void pass_on(int signal);
  void stop_and_continue();
  void reap();
  void note_end(RankEnd& end, std::int64_t time_ns);
  void act_on_deadlines();
  void send_to_running(int signal);
  std::optional<std::int64_t> next_deadline() const;

  SignalQueue& signals_;
  Patience patience_;
  std::function<void(const std::vector<RankEnd>&)> on_failure_;
  bool has_failed_ = false;
  std::vector<Rank> ranks_;
  std::set<int> passed_on_;
  bool was_asked_to_end_ = false;
  int num_interrupts_ = 0;
  std::int64_t first_interrupt_ns_ = 0;
  std::optional<std::int64_t> terminate_ns_;  ///< when SIGTERM is due
  std::optional<std::int64_t> kill_ns_;       ///< when SIGKILL is due
};

}  // namespace pharos::launch

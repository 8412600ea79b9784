// What the report says of processes that really left flight records, rings and logs.
#include "pharos/launch/report.h"

#include <gmock/gmock.h>

#include <functional>

#include "pharos/base/clock.h"
#include "pharos/comm/flight.h"
#include "pharos/comm/flight/writer.h"
#include "pharos/launch/evidence.h"
#include "pharos/launch/test_support.h"
#include "pharos/lens/life/telemetry.h"
#include "pharos/lens/span.h"
#include "pharos/lens/test_support.h"

namespace pharos::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class Report : public testing::JobTest {
 protected:
  Report() {
    std::filesystem::create_directories(run_folder / "trace");
    attempt.run_folder = run_folder;
    attempt.start_time = std::filesystem::file_time_type::clock::now() - std::chrono::seconds(10);
  }

  /// A process that leaves behind what `work` does and ends as rank `rank`.
  void add_rank(std::int64_t rank, const std::function<void()>& work, int code, int signal = 0) {
    const pid_t pid = fork();
    if (pid == 0) {
      work();
      _exit(0);
    }
    waitpid(pid, nullptr, 0);
    attempt.ends.push_back({.rank = rank, .pid = pid, .code = code, .signal = signal, .time_ns = base::monotonic_ns()});
    attempt.logs.push_back({.path = run_folder / (rank == 0 ? "log.txt" : "rank_" + std::to_string(rank) + ".log")});
  }
  std::filesystem::path flight_of(std::int64_t rank) const {
    return run_folder / "trace" / comm::flight_file_name(rank);
  }

  AttemptRecord attempt;
};

TEST_F(Report, SaysWhereTheDeadRankStood) {
  add_rank(
      0, [] {}, 3);
  add_rank(
      1,
      [this] {
        comm::start_flight_record(flight_of(1), 1, 2);
        comm::report_progress("step", 12);
        lens::Telemetry::init({.groups = lens::kEveryGroup, .rank = 1, .world_size = 2, .run_folder = run_folder});
        PHAROS_SPAN(train, lens::Group::kJob, "megatron.train");
        PHAROS_SPAN(step, lens::Group::kStep, "megatron.train.iteration");
        kill(getpid(), SIGKILL);
      },
      0, SIGKILL);
  attempt.ends[0].time_ns = attempt.ends[1].time_ns;  // seen together: the signal was the cause
  base::write_file_atomically(attempt.logs[1].path, "the last thing it said\n");
  const std::string text = describe_attempt(attempt);
  EXPECT_THAT(text, StartsWith("launcher: rank 1 was killed by SIGKILL.\n"));
  EXPECT_THAT(text, HasSubstr("rank 1 was in phase step, 12 steps completed, last progress "));
  EXPECT_THAT(text, HasSubstr("rank 1 was in span megatron.train > megatron.train.iteration, open for "));
  EXPECT_THAT(text, HasSubstr("rank_1.log:\n    the last thing it said\n"));
  EXPECT_THAT(text, HasSubstr("  rank 0 left with code 3 (training failure) (0.00 s later)\n"));
  EXPECT_EQ(last_step(attempt), 12);
  EXPECT_EQ(summarize_attempt(attempt), "rank 1 was killed by SIGKILL");
}

TEST_F(Report, LastSpanOfARankThatLeftInOrder) {
  add_rank(
      0,
      [this] {
        auto& telemetry = lens::Telemetry::init({.groups = lens::kEveryGroup, .rank = 0, .run_folder = run_folder});
        { PHAROS_SPAN(step, lens::Group::kStep, "megatron.train.iteration"); }
        telemetry.shutdown();
      },
      3);
  EXPECT_THAT(describe_attempt(attempt),
              HasSubstr("rank 0 was between spans, last span megatron.train.iteration, ended "));
}

TEST_F(Report, LastSpanIsNotAMarkerWithoutWork) {
  for (const bool has_work : {true, false}) {
    attempt.ends.clear();
    add_rank(
        0,
        [this, has_work] {
          auto& telemetry = lens::Telemetry::init({.groups = lens::kEveryGroup, .rank = 0, .run_folder = run_folder});
          if (has_work) {
            PHAROS_SPAN(step, lens::Group::kStep, "megatron.train.iteration");
          }
          { PHAROS_SPAN(beat, lens::Group::kCheckpoint, "megatron.checkpoint.ft_heartbeat"); }
          { PHAROS_SPAN(final, lens::Group::kCheckpoint, "megatron.checkpoint.save.finalize"); }
          telemetry.shutdown();
        },
        3);
    EXPECT_THAT(describe_attempt(attempt),
                HasSubstr(std::string("last span ") +
                          (has_work ? "megatron.train.iteration" : "megatron.checkpoint.save.finalize") + ", ended "));
  }
}

TEST_F(Report, RecordsOfOtherProcessesSayNothing) {
  add_rank(
      0,
      [this] {
        comm::start_flight_record(flight_of(0), 0, 1);
        comm::report_progress("step", 12);
        lens::Telemetry::init({.groups = lens::kEveryGroup, .rank = 0, .run_folder = run_folder});
        PHAROS_SPAN(train, lens::Group::kJob, "megatron.train");
        kill(getpid(), SIGKILL);
      },
      0, SIGKILL);
  attempt.ends[0].pid += 1;  // of the attempt before
  const std::string text = describe_attempt(attempt);
  EXPECT_THAT(text, Not(HasSubstr("phase")));
  EXPECT_THAT(text, Not(HasSubstr("span")));
  EXPECT_EQ(last_step(attempt), 0);
  base::write_file_atomically(run_folder / "metrics.jsonl", "{\"step\":7,\"loss\":1}\n{\"step\":8,\"text\":\"" +
                                                                std::string(1000, 'x') + "\"}\n{\"step\":9,\"lo");
  EXPECT_EQ(last_step(attempt), 8);
}

TEST_F(Report, DamagedRecordsAreLeftOut) {
  add_rank(
      0, [] {}, 3);
  base::write_file_atomically(flight_of(0), "no record");
  base::write_file_atomically(run_folder / "trace/rank_0.ring", "no ring");
  EXPECT_THAT(describe_attempt(attempt), StartsWith("launcher: rank 0 left with code 3 (training failure).\n"));
}

/// Rank 0 and rank 2 wait in an all_reduce to which rank 1 has not come; the watchdog of rank 0 is the first to fire.
class Hang : public Report {
 protected:
  void SetUp() override {
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      add_rank(
          rank,
          [this, rank] {
            comm::FlightWriter record(flight_of(rank), rank, 3);
            comm::FlightGroup group("dp", {0, 1, 2});
            record.report("step", 5, base::monotonic_ns());
            const comm::FlightCall call = {.operation = comm::Operation::kAllReduce,
                                           .number = group.next_number(comm::FlightGroup::kCollectives),
                                           .purpose = "gradients",
                                           .bytes = 4096};
            if (rank == 1) return;
            comm::FlightTicket ticket = record.begin(group, call);
            ticket.mark_start();
            ticket.mark_wait();
          },
          rank == 1 ? 0 : 3, rank == 1 ? SIGKILL : 0);
    }
    attempt.ends[1].was_told_to = true;
    base::write_file_atomically(run_folder / "trace/rank_00000.hang.json", R"({"reason": "no step ended"})");
  }
};

TEST_F(Hang, NamesTheRankThatTheOthersWaitFor) {
  const std::string text = describe_attempt(attempt);
  EXPECT_THAT(text,
              StartsWith("launcher: the job hung: rank 1 held up the others; rank 0 gave up first and left with code 3 "
                         "(training failure).\n"));
  EXPECT_THAT(text, HasSubstr("rank 1 was in phase step, 5 steps completed"));
  EXPECT_THAT(text, HasSubstr("who waited for whom:\n"));
  EXPECT_THAT(text, HasSubstr("gradients"));
  EXPECT_THAT(text, HasSubstr("written when the time was up:\n    no step ended: " +
                              (run_folder / "trace/rank_00000.hang.json").string()));
  EXPECT_THAT(text, HasSubstr("rank 2 left with code 3"));
}

TEST_F(Hang, StoppedRankIsTheCulpritWhateverTheRecordsSay) {
  attempt.ends[2].was_stopped = true;
  EXPECT_THAT(
      describe_attempt(attempt),
      StartsWith("launcher: the job hung: rank 2 held up the others by standing still (SIGSTOP or a debugger)"));
}

TEST_F(Hang, FilesOfAnAttemptBeforeAreNoHang) {
  attempt.start_time = std::filesystem::file_time_type::clock::now() + std::chrono::seconds(10);
  EXPECT_THAT(describe_attempt(attempt), StartsWith("launcher: rank 0 left with code 3 (training failure).\n"));
}

}  // namespace
}  // namespace pharos::launch

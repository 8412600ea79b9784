#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/train/exit_policy.h"
#include "pharos/train/report/log_line.h"
#include "pharos/train/report/metrics_log.h"
#include "pharos/train/report/network_report.h"
#include "pharos/train/report/progress.h"
#include "pharos/train/report/progress_file.h"
#include "pharos/train/run_folder.h"

namespace pharos::train {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

struct FolderTest : ::testing::Test {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("pharos_train_" + std::to_string(::getpid()));
  void SetUp() override { base::make_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
};

LogLine example_line() {
  LogLine line;
  line.iteration = 20;
  line.train_iters = 100;
  line.consumed_samples = 640;
  line.elapsed_ms_per_iteration = 123.456;
  line.learning_rate = 3e-4;
  line.global_batch_size = 32;
  line.losses = {{"lm loss", 5.4321}};
  line.grad_norm = 1.23456;
  return line;
}

// Field by field the format strings of megatron-telemetry.md 9.1.
TEST(LogLine, IsMegatrons) {
  const std::string text = render_log_line(example_line());
  EXPECT_THAT(text.substr(0, 30), MatchesRegex(R"( \[....-..-.. ..:..:..\.......\] )"));
  EXPECT_EQ(text.substr(29),
            " iteration       20/     100 | consumed samples:          640 | elapsed time per iteration (ms): 123.5 |"
            " learning rate: 3.000000E-04 | global batch size:    32 | lm loss: 5.432100E+00 | loss scale: 1.0 |"
            " grad norm: 1.235 | number of skipped iterations:   0 | number of nan iterations:   0 |");
}

TEST(LogLine, OptionalFieldsInOrder) {
  LogLine line = example_line();
  line.skipped_samples = 7;
  line.tflops_per_device = 12.34;
  line.num_zeros = 42;
  line.params_norm = 99.5;
  line.num_skipped_iterations = 2;
  line.num_nan_iterations = 1;
  const std::string text = render_log_line(line);
  EXPECT_THAT(
      text,
      HasSubstr(
          "consumed samples:          640 | skipped samples:            7 | elapsed time per iteration (ms): 123.5 |"
          " throughput per GPU (TFLOP/s/GPU): 12.3 | learning rate:"));
  EXPECT_THAT(text,
              EndsWith("grad norm: 1.235 | num zeros: 42 | params norm: 99.500 | number of skipped iterations:   2 |"
                       " number of nan iterations:   1 |"));
}

TEST(LogLine, ShowsWhatIsNotANumber) {
  LogLine line = example_line();
  for (const double value : {std::nan(""), -std::nan("")}) {
    line.losses = {{"lm loss", value}};
    EXPECT_THAT(render_log_line(line), HasSubstr("| lm loss: NAN |"));
  }
  line.losses = {{"lm loss", std::numeric_limits<double>::infinity()}, {"z_loss", -0.5}};
  EXPECT_THAT(render_log_line(line), HasSubstr("| lm loss: INF | z_loss: -5.000000E-01 |"));
}

TEST(LogLine, ValidationIsFramed) {
  const std::string text = render_validation_lines("iteration 100", 2.0);
  const std::string middle =
      " validation loss at iteration 100 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | ";
  EXPECT_EQ(text, std::string(middle.size(), '-') + "\n" + middle + "\n" + std::string(middle.size(), '-'));
  EXPECT_THAT(render_validation_lines("iteration 1", 50), HasSubstr("PPL: 4.851652E+08"));  // exp(min(20, loss))
}

TEST(Progress, FitsTheTerminal) {
  const ProgressState state{370, 1000, 1.8421, 0.1, 11200};
  const std::string wide = render_progress(state, 120);
  EXPECT_THAT(wide,
              StartsWith("[#######-------------]  37% step 370/1000 · loss 1.8421 · 11.2 K tokens/s · ETA 1 min 03 s"));
  for (int columns = 1; columns < 120; ++columns) {
    const std::string text = render_progress(state, columns);
    const auto width = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    EXPECT_LE(width, columns);
  }
  EXPECT_THAT(render_progress({0, 0, 0, 0, 0}, 200), HasSubstr("step 0/0"));
}

TEST_F(FolderTest, ARunIsNeverOverwrittenOrResumedByAccident) {
  const auto path = folder / "run";
  EXPECT_THROW(RunFolder(path, true), base::UserError);
  { const RunFolder first(path, false); }
  { const RunFolder again(path, false); }  // nothing was started in it yet
  base::write_file_atomically(path / "run.yaml", "train: {}\n");
  EXPECT_THROW(RunFolder(path, false), base::UserError);
  const RunFolder resumed(path, true);
  EXPECT_THROW(RunFolder(path, true), base::UserError);  // two at once
}

TEST_F(FolderTest, WhereNoRunBeganThereIsNothingToResume) {
  const auto run_yaml = folder / "run" / "run.yaml";
  const auto refused = [&](bool resume, const char* part) {
    try {
      const RunFolder opened(folder / "run", resume);
      ADD_FAILURE() << part;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  refused(true, "The folder does not exist");
  { const RunFolder killed(folder / "run", false); }
  refused(true, "run.yaml is missing");
  base::write_file_atomically(run_yaml, "");
  refused(true, "run.yaml is empty");
  { const RunFolder again(folder / "run", false); }
  base::write_file_atomically(folder / "run/metrics.jsonl", "{\"step\":1}\n");
  refused(false, "already holds a run");
  { const RunFolder damaged(folder / "run", true); }
}

TEST_F(FolderTest, LeftOverFilesOfAKilledProcessAreRemoved) {
  for (const char* name : {"run.yaml.tmp.17", "metrics.jsonl.tmp.4", "run.yaml.tmp.", "run.yaml.tmp.x", "own.tmp.17"})
    base::write_file_atomically(folder / name, "x");
  const RunFolder opened(folder, false);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) left.push_back(entry.path().filename());
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("lock", "run.yaml.tmp.", "run.yaml.tmp.x", "own.tmp.17"));
}

TEST_F(FolderTest, APipeInPlaceOfAFileIsRefused) {
  for (const char* name : {"lock", "log.txt", "metrics.jsonl"}) ASSERT_EQ(::mkfifo((folder / name).c_str(), 0600), 0);
  EXPECT_THROW(RunFolder(folder, false), base::UserError);
  EXPECT_THROW(Console(folder / "log.txt", Console::Output::kNone), base::UserError);
  EXPECT_THROW(MetricsLog(folder / "metrics.jsonl", 0), base::UserError);
  ProgressFile(folder / "log.txt", true, 1).append("costs its line");
}

TEST_F(FolderTest, DefaultNamesDoNotCollide) {
  const auto previous = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  const auto first = default_run_folder("quickstart", 1'700'000'000'000'000'000);
  EXPECT_THAT(first.string(), MatchesRegex(R"(runs/quickstart-2023111.-......)"));
  base::make_directories(first);
  EXPECT_EQ(default_run_folder("quickstart", 1'700'000'000'000'000'000).string(), first.string() + "-2");
  // Many at once: each has its own.
  std::mutex mutex;
  std::set<std::string> made;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        const auto path = make_default_run_folder("quickstart", 1'700'000'000'000'000'000);
        const std::lock_guard lock(mutex);
        made.insert(path.string());
      });
    }
  }
  EXPECT_EQ(made.size(), 8U);
  EXPECT_FALSE(made.contains(first.string()));
  for (const std::string& path : made) EXPECT_TRUE(std::filesystem::is_directory(path)) << path;
  std::filesystem::current_path(previous);
}

TEST_F(FolderTest, MetricsOfStepsAfterTheCheckpointAreDropped) {
  const auto path = folder / "metrics.jsonl";
  base::write_file_atomically(path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st");
  {
    MetricsLog log(path, 2);
    log.append({{"step", 3}, {"loss", std::nan("")}});
  }
  EXPECT_EQ(base::read_file(path), "{\"step\":1}\n{\"step\":2}\n{\"loss\":null,\"step\":3}\n");
}

TEST_F(FolderTest, WithoutANetworkDeviceThereAreNoLines) {
  std::string why_not;
  if (profile::open_nvlink(why_not) != nullptr) GTEST_SKIP() << "this machine has NVLink";
  config::RunConfig config;
  config.profiling.network_counters = true;
  config.logger.log_interval = 1;
  for (const std::filesystem::path& root : {std::filesystem::path(), folder / "absent"}) {
    config.profiling.network_counters_root = root;
    const auto log = folder / "log.txt", written = folder / "metrics.jsonl";
    {
      Console console(log, Console::Output::kNone);
      MetricsLog metrics(written, 0);
      NetworkReport report(config, 0, 0, console, metrics);
      report.after_step(1);
      report.finish();
    }
    EXPECT_THAT(base::read_file(log), HasSubstr("'" + root.string() + "' has no device"));
    EXPECT_THAT(base::read_file(log), ::testing::Not(HasSubstr("network, steps")));
    EXPECT_EQ(base::read_file(written), "");
  }
}

TEST_F(FolderTest, ConsoleKeepsEveryLineInTheLogFile) {
  const auto path = folder / "log.txt";
  ::testing::internal::CaptureStdout();
  {
    Console console(path, Console::Output::kTerminal);
    console.line("first");
    console.progress({1, 2, 0.5, 1, 1});
    console.log_line("hidden on a terminal");
    console.line("last");
  }
  const std::string shown = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(base::read_file(path), "first\nhidden on a terminal\nlast\n");
  EXPECT_THAT(shown, HasSubstr("step 1/2"));
  EXPECT_THAT(shown, ::testing::Not(HasSubstr("hidden")));
}

TEST(ExitPolicy, ByDurationIntervalAndSignal) {
  config::TrainConfig train;
  EXPECT_FALSE(decide_exit(train, 10, {.elapsed_ns = 1'000'000'000}));
  train.exit_interval = 5;
  EXPECT_FALSE(decide_exit(train, 9, {}));
  ASSERT_TRUE(decide_exit(train, 10, {}));
  EXPECT_EQ(decide_exit(train, 10, {})->message, "exiting program at iteration 10");
  train.exit_duration_in_mins = 2;
  EXPECT_FALSE(decide_exit(train, 9, {.elapsed_ns = 120'000'000'000}));
  EXPECT_EQ(decide_exit(train, 9, {.elapsed_ns = 120'000'000'001})->reason, ExitReason::kDuration);
  train.exit_signal_handler = true;
  train.exit_signal = config::ExitSignal::kUsr1;
  const SignalWatch watch(train);
  ::raise(SIGUSR1);
  EXPECT_EQ(decide_exit(train, 9, {.signal = SignalWatch::received()})->message,
            "exiting program after receiving SIGUSR1.");
}

TEST(ExitPolicyDeathTest, SecondSignalEndsAtOnce) {
  EXPECT_EXIT(
      {
        const SignalWatch watch(config::TrainConfig{});
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace pharos::train

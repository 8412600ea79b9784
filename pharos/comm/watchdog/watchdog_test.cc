#include "pharos/comm/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/comm/flight.h"
#include "pharos/comm/test_process.h"

namespace pharos::comm {
namespace {

using ::testing::HasSubstr;

TEST(Watchdog, EndsAProcessThatHangs) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "watchdog_hang";
  std::filesystem::create_directories(folder);
  std::filesystem::remove(folder / hang_file_name(3));
  const auto ended = testing::Process({"hang", folder.string()}, {}).wait();
  ASSERT_TRUE(WIFEXITED(ended.status)) << ended.errors;
  EXPECT_EQ(WEXITSTATUS(ended.status), 3);
  EXPECT_THAT(ended.errors, HasSubstr("pharos: rank 3 hangs: "));
  EXPECT_THAT(ended.errors, HasSubstr("rank_00003.hang.json"));
  const auto dump = base::read_json_file(folder / "rank_00003.hang.json");
  EXPECT_EQ(dump["rank"], 3);
  EXPECT_EQ(dump["phase"], "step");
  EXPECT_EQ(dump["step"], 41);
  EXPECT_EQ(dump["timeout_s"], 0.1);
  EXPECT_GE(dump["seconds_without_progress"], 0.1);
  ASSERT_EQ(dump["pending"].size(), 1U);
  EXPECT_EQ(dump["pending"][0]["group"], "dp");
  EXPECT_EQ(dump["pending"][0]["number"], 2);
  EXPECT_EQ(dump["pending"][0]["purpose"], "gradient bucket 2");
  EXPECT_EQ(dump["pending"][0]["ranks"], (std::vector<int>{1, 3}));
  ASSERT_EQ(dump["finished"].size(), 1U);
  EXPECT_EQ(dump["finished"][0]["operation"], "all_gather");
  EXPECT_GE(dump["stack"].size(), 3U);
  EXPECT_THAT(dump["stack"].get<std::vector<std::string>>(), ::testing::Contains(HasSubstr("pause")));
  // What the launcher reads of a process that has ended.
  const auto state = read_flight_record(folder / flight_file_name(3));
  EXPECT_EQ(state.step, 41);
  EXPECT_NE(state.alive_ns, 0);
}

TEST(Watchdog, LongerTimeOutBeforeTheFirstStep) {
  std::mutex mutex;
  std::condition_variable changed;
  std::string dump;
  const auto folder = std::filesystem::path(::testing::TempDir());
  report_progress("set-up", 0);
  const Watchdog watchdog({.rank = 1,
                           .set_up_timeout = std::chrono::hours(1),
                           .step_timeout = std::chrono::milliseconds(50),
                           .folder = folder,
                           .on_hang = [&](const std::string& text) {
                             const std::lock_guard lock(mutex);
                             dump = text;
                             changed.notify_all();
                           }});
  std::unique_lock lock(mutex);
  EXPECT_FALSE(changed.wait_for(lock, std::chrono::milliseconds(200), [&] { return !dump.empty(); }));
  report_progress("step", 1);
  changed.wait(lock, [&] { return !dump.empty(); });
  const auto json = base::parse_json(dump, "dump");
  EXPECT_NE(json["reason"], "");
  EXPECT_EQ(json["timeout_s"], 0.05);
  EXPECT_EQ(base::read_file(folder / hang_file_name(1)), dump);
}

}  // namespace
}  // namespace pharos::comm

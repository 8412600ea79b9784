#include "pharos/pipeline/report/measured_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/pipeline/report/test_measured.h"

namespace pharos::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class MeasuredFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::vector<MeasuredStep>& steps) const {
    for (const MeasuredStep& step : steps) MeasuredFile(folder_, step.global_rank).append(step);
  }
  fs::path file(int rank) const { return folder_ / "trace" / ("pipeline_rank_0000" + std::to_string(rank) + ".jsonl"); }
  void add_text(int rank, const std::string& text) const {
    std::ofstream(file(rank), std::ios::binary | std::ios::app) << text;
  }

  fs::path folder_;
};

std::vector<MeasuredStep> steps_of(const Schedule& schedule, std::int64_t step) {
  return measured_of(simulate(schedule, uneven_costs(schedule.num_ranks * schedule.num_chunks, 1)), step);
}

TEST_F(MeasuredFileTest, ReadsWhatWasWritten) {
  for (const Schedule& schedule : one_of_each()) {
    fs::remove_all(folder_);
    std::vector<MeasuredStep> expected = steps_of(schedule, 1);
    expected[1].bytes_sent = 123456789012;
    expected[2].peak_activation_bytes = 7;
    for (const MeasuredStep& step : steps_of(schedule, 2)) expected.push_back(step);
    write(expected);
    std::int64_t num_damaged = -1;
    EXPECT_EQ(read_measured_steps(folder_, &num_damaged), expected) << schedule.name;
    EXPECT_EQ(num_damaged, 0);
  }
}

TEST_F(MeasuredFileTest, OrdersByStepReplicaAndRank) {
  std::vector<MeasuredStep> first = steps_of(gpipe(2, 2), 1), second = first;
  for (MeasuredStep& step : second) {
    step.global_rank += 4;
    step.replica = 4;
  }
  write({second[1], first[1], first[0], second[0]});
  EXPECT_EQ(read_measured_steps(folder_), (std::vector<MeasuredStep>{first[0], first[1], second[0], second[1]}));
}

TEST_F(MeasuredFileTest, WithoutFilesIsEmpty) {
  EXPECT_TRUE(read_measured_steps(folder_).empty());
  base::make_directories(folder_ / "trace");
  add_text(0, "");
  EXPECT_TRUE(read_measured_steps(folder_).empty());
}

// A killed process leaves half a line; the next one goes on in a line of its own.
TEST_F(MeasuredFileTest, LeavesOutHalfLines) {
  const auto first = steps_of(gpipe(1, 2), 1), second = steps_of(gpipe(1, 2), 2);
  write(first);
  add_text(0, R"({"step":2,"schedule":"gpi)");
  std::int64_t num_damaged = 0;
  EXPECT_EQ(read_measured_steps(folder_, &num_damaged), first);
  EXPECT_EQ(num_damaged, 1);
  write(second);
  EXPECT_EQ(read_measured_steps(folder_, &num_damaged), (std::vector<MeasuredStep>{first[0], second[0]}));
  EXPECT_EQ(num_damaged, 1);
}

TEST_F(MeasuredFileTest, LastOfARepeatedStepCounts) {
  auto before = steps_of(gpipe(1, 2), 5), again = before;
  for (MeasuredAction& action : again[0].actions) {
    action.asked_ns += 1000;
    action.start_ns += 1000;
    action.end_ns += 2000;
  }
  write(before);
  write(steps_of(gpipe(1, 2), 6));
  write(again);
  EXPECT_EQ(read_measured_steps(folder_)[0], again[0]);
  // The same place in the file of another rank, after a change of the layout, is older.
  before[0].global_rank = 1;
  write(before);
  EXPECT_EQ(read_measured_steps(folder_)[0], again[0]);
}

TEST_F(MeasuredFileTest, KeepsTheLastSteps) {
  MeasuredFile file(folder_, 0);
  const std::int64_t last = static_cast<std::int64_t>(kMostMeasuredSteps) + 10;
  for (std::int64_t step = 1; step <= last; ++step) file.append(steps_of(gpipe(1, 1), step)[0]);
  const auto steps = read_measured_steps(folder_);
  ASSERT_EQ(steps.size(), kMostMeasuredSteps);
  EXPECT_EQ(steps.front().step, 11);
  EXPECT_EQ(steps.back().step, last);
  EXPECT_EQ(read_measured_steps(folder_, nullptr, 3), steps_of(gpipe(1, 1), 3));
  EXPECT_TRUE(read_measured_steps(folder_, nullptr, last + 1).empty());
}

TEST_F(MeasuredFileTest, RefusesOtherShapes) {
  write(steps_of(gpipe(1, 2), 1));
  const std::string good = base::read_file(file(0));
  const auto changed = [&good](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"[1]\n", "it is no object"},
      {R"({"loss": 3.5})"
       "\n",
       "it has no 'step'"},
      {changed("\"step\":1", "\"step\":-1"), "'step' is no whole number"},
      {changed("\"step\":1", "\"step\":1.5"), "'step' is no whole number"},
      {changed("\"schedule\":\"gpipe\"", "\"schedule\":3"), "'schedule' is no text"},
      {changed("\"ranks\":1", "\"ranks\":99999999999"), "'ranks' is above"},
      {changed("\"rank\":0", "\"rank\":1"), "its rank is not one of its ranks"},
      {changed("\"stages\":[0]", "\"stages\":[0,1]"), "one stage for each chunk"},
      {changed("\"stages\":[0]", "\"stages\":[\"0\"]"), "'stages' is no list"},
      {changed("\"microbatches\":2", "\"microbatches\":9"), "fewer actions than microbatches"},
      {changed("F0 F1", "F0 G1"), "'G1' is no action"},
      {changed("F0 F1", "F0 F1 F1"), "more actions than times"},
      {changed("F0 F1", "F0"), "more times than actions"},
      {changed("\"asked_ns\":[0,", "\"asked_ns\":[5,"), "starts before it was asked for"}};
  for (const auto& [text, fault] : cases) {
    base::write_file_atomically(file(0), good + text);
    try {
      read_measured_steps(folder_);
      ADD_FAILURE() << text;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fault)) << text;
      EXPECT_THAT(error.what(), HasSubstr(file(0).string() + ":2"));
    }
  }
}

TEST_F(MeasuredFileTest, SaysWhatCannotBeWritten) {
  base::make_directories(folder_);
  std::ofstream(folder_ / "trace") << "a file";
  EXPECT_THROW(MeasuredFile(folder_, 0), base::UserError);
}

TEST_F(MeasuredFileTest, APipeIsNotWaitedFor) {
  base::make_directories(folder_ / "trace");
  ASSERT_EQ(::mkfifo(file(0).c_str(), 0600), 0);
  EXPECT_THROW(MeasuredFile(folder_, 0), base::UserError);
  EXPECT_TRUE(read_measured_steps(folder_).empty());
}

}  // namespace
}  // namespace pharos::pipeline

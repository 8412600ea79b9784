#include "pharos/pipeline/schedule_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"
#include "pharos/base/file.h"

namespace pharos::pipeline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Phase F = Phase::kForward, B = Phase::kBackward, W = Phase::kWeight;

TEST(ScheduleFile, ReadsWhatItDocuments) {
  const Schedule schedule = parse_schedule(
      R"({"ranks": 1, "chunks": 2, "microbatches": 1, "actions": ["F0  F0.1\nB0.1 W0.1 B0 W0.0"]})", "mine.json");
  EXPECT_EQ(schedule.name, "file");
  EXPECT_THAT(schedule.stage_of, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(schedule.actions[0], ElementsAre(Action{F, 0, 0}, Action{F, 0, 1}, Action{B, 0, 1}, Action{W, 0, 1},
                                               Action{B, 0, 0}, Action{W, 0, 0}));
}

// The example of docs/pipelines.md.
TEST(ScheduleFile, ReadsTheExample) {
  const Schedule schedule = parse_schedule(
      R"({
      "name": "mine",
      "ranks": 2,
      "microbatches": 2,
      "actions": [
        "F0 F1 B0 W0 B1 W1",
        "F0 B0 F1 B1 W0 W1"
      ]
    })",
      "mine.json");
  EXPECT_EQ(schedule.name, "mine");
  EXPECT_THAT(schedule.stage_of, ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(peak_in_flight(schedule), ElementsAre(2, 2));
}

TEST(ScheduleFile, RoundTrips) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "schedule_file_test.json";
  for (Schedule schedule : {gpipe(2, 3), one_forward_one_backward(4, 6), interleaved(2, 3, 4, 2), zero_bubble_1p(3, 5),
                            zero_bubble_v(3, 7), dual_pipe_v(2, 5)}) {
    schedule.name += " \"of\" mine";
    base::write_file_atomically(path, schedule_to_json(schedule));
    const Schedule read = schedule_from_file(path);
    EXPECT_EQ(read.name, schedule.name);
    EXPECT_EQ(read.num_microbatches, schedule.num_microbatches);
    EXPECT_EQ(read.stage_of, schedule.stage_of);
    EXPECT_EQ(read.actions, schedule.actions);
  }
  std::filesystem::remove(path);
}

std::string error_of(const std::string& text) {
  try {
    parse_schedule(text, "mine.json");
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ScheduleFile, NamesEveryFaultAndItsPlace) {
  struct Case {
    const char* text;
    const char* place;
    const char* message;
  };
  const Case cases[] = {
      {R"({"ranks": 1,)", "mine.json, byte", "not valid JSON"},
      {"", "mine.json, byte", "not valid JSON"},
      {"[]", "mine.json", "[] is not a schedule"},
      {R"({"ranks": 1, "microbatches": 1})", "mine.json", "has no 'actions'"},
      {R"({"microbatches": 1, "actions": ["F0 B0"]})", "mine.json", "has no 'ranks'"},
      {R"({"ranks": 1, "actions": ["F0 B0"]})", "mine.json", "has no 'microbatches'"},
      {R"({"rank": 1, "microbatches": 1, "actions": ["F0 B0"]})", "mine.json, rank", "Did you mean ranks?"},
      {R"({"ranks": 0, "microbatches": 1, "actions": []})", "mine.json, ranks", "ranks = 0 is not a size"},
      {R"({"ranks": 1.5, "microbatches": 1, "actions": ["F0 B0"]})", "mine.json, ranks", "1.5 is not a size"},
      {R"({"ranks": 1, "microbatches": -3, "actions": ["F0 B0"]})", "mine.json, microbatches", "-3 is not a size"},
      {R"({"ranks": 99999999999999999999, "microbatches": 1, "actions": []})", "mine.json, ranks", "is not a size"},
      {R"({"ranks": 1, "chunks": "2", "microbatches": 1, "actions": ["F0 B0"]})", "mine.json, chunks", "is not a size"},
      {R"({"ranks": 1, "microbatches": 1, "name": 7, "actions": ["F0 B0"]})", "mine.json, name", "7 is not text"},
      {R"({"ranks": 1, "microbatches": 1, "name": "a\u001b[31m", "actions": ["F0 B0"]})", "mine.json, name", "control"},
      {R"({"ranks": 2, "microbatches": 1, "actions": ["F0 B0"]})", "mine.json, actions", "1 entries for 2 ranks"},
      {R"({"ranks": 1, "microbatches": 1, "actions": "F0 B0"})", "mine.json, actions", "is not a list"},
      {R"({"ranks": 1, "microbatches": 1, "actions": [["F0"]]})", "mine.json, actions[0]", "is not text"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0 Q0"]})", "mine.json, actions[0], action 1", "'Q0'"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F B0"]})", "mine.json, actions[0], action 0", "'F'"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F-1 B0"]})", "mine.json, actions[0], action 0", "'F-1'"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0 B0."]})", "mine.json, actions[0], action 1", "'B0.'"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0 B0.0x"]})", "mine.json, actions[0], action 1", "'B0.0x'"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0,B0"]})", "mine.json, actions[0], action 0", "'F0,B0'"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F99999999999 B0"]})", "actions[0], action 0", "not an action"},
      {R"({"ranks": 1, "microbatches": 1, "stages": 3, "actions": ["F0 B0"]})", "mine.json, stages", "is not a list"},
      {R"({"ranks": 1, "microbatches": 1, "stages": [[0, 1]], "actions": ["F0 B0"]})", "mine.json, stages[0]",
       "is not the stages of a rank"},
      {R"({"ranks": 1, "microbatches": 1, "stages": [["0"]], "actions": ["F0 B0"]})", "mine.json, stages[0]",
       "is not the stages of a rank"},
      {R"({"ranks": 1, "microbatches": 1, "stages": [[4]], "actions": ["F0 B0"]})", "mine.json",
       "rank 0 holds stage 4, outside 0..0"},
      {R"({"ranks": 2, "microbatches": 1, "stages": [[0], [0]], "actions": ["F0 B0", "F0 B0"]})", "mine.json",
       "stage 0 is held twice"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0 B0 F1"]})", "mine.json",
       "F(microbatch 1, chunk 0) is outside"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0 B0.1"]})", "mine.json",
       "B(microbatch 0, chunk 1) is outside"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0"]})", "mine.json, actions", "has no backward"},
      {R"({"ranks": 1, "microbatches": 2, "actions": ["F0 F1 B0"]})", "mine.json",
       "B(microbatch 1, chunk 0) is missing"},
      {R"({"ranks": 1, "chunks": 65000, "microbatches": 65000, "actions": ["F0 B0"]})", "mine.json", "are too many"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["F0 F0 B0"]})", "mine.json", "is doubled"},
      {R"({"ranks": 1, "microbatches": 1, "actions": ["B0 F0"]})", "mine.json", "is not preceded by F"},
      {R"({"ranks": 2, "microbatches": 1, "actions": ["F0 B0 W0", "F0 B0"]})", "mine.json",
       "rank 1: W(microbatch 0, chunk 0) is missing"},
      {R"({"ranks": 2, "microbatches": 2, "actions": ["F0 B0 F1 B1", "F0 F1 B0 B1"]})", "mine.json",
       "rank 0: B(microbatch 0, chunk 0) waits for ever on the backward of stage 1"},
      {R"({"ranks": 1, "microbatches": 30, "actions": ["F0 B0"]})", "mine.json", "50 more"},
  };
  for (const Case& c : cases) EXPECT_THAT(error_of(c.text), AllOf(HasSubstr(c.place), HasSubstr(c.message))) << c.text;
}

TEST(ScheduleFile, NamesAFileThatIsNotThere) {
  EXPECT_THROW(schedule_from_file("/nonexistent/schedule.json"), base::UserError);
}

}  // namespace
}  // namespace pharos::pipeline

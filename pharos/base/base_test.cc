#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>

#include "pharos/base/clock.h"
#include "pharos/base/environment.h"
#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"

namespace pharos::base {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename Action>
std::string user_error_of(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Error, NamesWhatWhereWhyAndFix) {
  const UserError error({.what = "W.", .where = "here", .why = "because", .fix = "do"});
  EXPECT_STREQ(error.what(), "W.\n  where: here\n  why: because\n  fix: do");
  EXPECT_STREQ(UserError({.what = "W."}).what(), "W.");
}

TEST(Error, CheckThrowsWithConditionAndDetail) {
  EXPECT_NO_THROW(PHAROS_CHECK(1 < 2, "unused"));
  try {
    PHAROS_CHECK(2 < 1, "two against one");
    FAIL() << "the check let a false condition pass";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("2 < 1 does not hold: two against one"));
  }
}

TEST(Environment, ReadsIntegersAndRefusesOthers) {
  ::setenv("PHAROS_TEST_VALUE", "12", 1);
  EXPECT_EQ(get_environment_integer("PHAROS_TEST_VALUE"), 12);
  for (const char* bad : {"", "12x", "1.5", " 1"}) {
    ::setenv("PHAROS_TEST_VALUE", bad, 1);
    EXPECT_THROW(get_environment_integer("PHAROS_TEST_VALUE"), UserError) << bad;
  }
  ::unsetenv("PHAROS_TEST_VALUE");
  EXPECT_EQ(get_environment_integer("PHAROS_TEST_VALUE"), std::nullopt);
}

TEST(Clock, ProcessStartedBeforeNowAndAfterBoot) {
  const auto start = process_start_monotonic_ns();
  EXPECT_GT(start, 0);
  EXPECT_LE(start, monotonic_ns());
  EXPECT_EQ(format_utc_time(1'700'000'000'123'456'789), "2023-11-14T22:13:20.123456Z");
  EXPECT_EQ(format_local_time(1'700'000'000'123'456'789).size(), 26U);
}

struct FileTest : ::testing::Test {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("pharos_base_" + std::to_string(::getpid()));
  void SetUp() override { make_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
};

TEST_F(FileTest, AtomicWriteReplacesAndLeavesNothingBehind) {
  const auto path = folder / "a.txt";
  write_file_atomically(path, "one");
  write_file_atomically(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST_F(FileTest, OutputFollowsLinksAndWritesToWhatIsNoFile) {
  write_output_file(folder / "new", "one");
  EXPECT_EQ(read_file(folder / "new"), "one");
  std::filesystem::create_symlink(folder / "new", folder / "link");
  write_output_file(folder / "link", "two");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "new"), "two");
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  write_output_file(pipe, "three");
  std::array<char, 8> text{};
  EXPECT_EQ(::read(reader, text.data(), text.size()), 5);
  EXPECT_STREQ(text.data(), "three");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST_F(FileTest, FaultsNameThePathAndTheReason) {
  EXPECT_THAT(user_error_of([&] { read_file(folder / "none"); }), HasSubstr("none': No such file"));
  EXPECT_THAT(user_error_of([&] { MappedFile map(folder); }), HasSubstr("Is a directory"));
  EXPECT_THAT(user_error_of([&] { write_file_atomically(folder / "no" / "x", "y"); }), HasSubstr("No such file"));
  EXPECT_THAT(user_error_of([&] { OutputFile("/dev/full").write("x"); }), HasSubstr("Free space"));
  write_file_atomically(folder / "plain", "x");
  EXPECT_THAT(user_error_of([&] { make_directories(folder / "plain"); }), HasSubstr("Cannot create folder"));
}

TEST_F(FileTest, PipesAreNotWaitedFor) {
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(user_error_of([&] { MappedFile map(pipe); }), HasSubstr("not a regular file"));
  EXPECT_THAT(user_error_of([&] { read_json_file(pipe); }), HasSubstr("not a regular file"));
}

TEST_F(FileTest, MapShowsTheBytesAndMayBeEmpty) {
  write_file_atomically(folder / "m", "abc");
  MappedFile map(folder / "m");
  ASSERT_EQ(map.size_bytes(), 3U);
  EXPECT_EQ(static_cast<char>(map.data()[2]), 'c');
  MappedFile moved = std::move(map);
  EXPECT_EQ(moved.size_bytes(), 3U);
  write_file_atomically(folder / "empty", "");
  EXPECT_EQ(MappedFile(folder / "empty").size_bytes(), 0U);
}

TEST_F(FileTest, JsonFaultNamesFileAndByte) {
  write_file_atomically(folder / "j.json", "{\"a\": 1,, }");
  EXPECT_THAT(user_error_of([&] { read_json_file(folder / "j.json"); }), HasSubstr("j.json, byte 9"));
}

TEST(Text, Units) {
  EXPECT_EQ(format_bytes(17), "17 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(12.0 * 1024 * 1024 * 1024), "12.0 GiB");
  EXPECT_EQ(format_duration(2'310'000), "2.31 ms");
  EXPECT_EQ(format_duration(185'000'000'000), "3 min 05 s");
  EXPECT_EQ(format_duration(7'800'000'000'000), "2 h 10 min");
  EXPECT_EQ(format_count(26'900'000), "26.9 M");
}

TEST(Text, NearestNames) {
  const std::vector<std::string> known{"train.train_iters", "train.train_samples", "optimizer.lr",
                                       "train.micro_batch_size"};
  EXPECT_EQ(nearest_names("train.train_iter", known).front(), "train.train_iters");
  EXPECT_EQ(nearest_names("train.micro_batchsize", known).front(), "train.micro_batch_size");
  EXPECT_THAT(nearest_names("model.lr", known), ElementsAre("optimizer.lr"));
  EXPECT_THAT(nearest_names("zzzzzzzz", known), IsEmpty());
}

}  // namespace
}  // namespace pharos::base

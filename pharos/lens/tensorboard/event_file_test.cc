// Event files byte by byte; that TensorBoard itself reads them is tests/tensorboard_test.py.
#include "pharos/lens/tensorboard/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <protozero/pbf_reader.hpp>
#include <stdexcept>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/lens/tensorboard/crc32c.h"
#include "pharos/lens/tensorboard/training_scalars.h"
#include "pharos/lens/test_support.h"

namespace pharos::lens {
namespace {

std::string counting_bytes(int first, int step) {
  std::string bytes;
  for (int i = 0; i < 32; ++i) bytes += static_cast<char>(first + i * step);
  return bytes;
}

TEST(Crc32c, VectorsOfRfc3720) {
  using namespace std::string_literals;
  const std::string read_command =
      "\x01\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\x04\0\0\0\0\x14\0\0\0\x18\x28\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"s;
  const std::pair<std::string, std::uint32_t> cases[] = {
      {"", 0},
      {"123456789", 0xe3069283},
      {std::string(32, '\0'), 0x8a9136aa},
      {std::string(32, '\xff'), 0x62a8ab43},
      {counting_bytes(0, 1), 0x46dd794e},
      {counting_bytes(31, -1), 0x113fdb5c},
      {read_command, 0xd9963a56},
  };
  for (const auto& [data, expected] : cases) EXPECT_EQ(crc32c(data), expected) << data.size();
}

struct Point {
  std::string tag;
  float value = 0;
  std::int64_t step = 0;
};

template <typename Number>
Number read_number(std::string_view bytes) {
  Number number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

/// Reads a file to its end; every frame must be whole. The version comes back as a point of its own.
std::vector<Point> read_points(const std::filesystem::path& path) {
  const std::string content = base::read_file(path);
  std::string_view rest = content;
  std::vector<Point> points;
  while (!rest.empty()) {
    if (rest.size() < 12) throw std::runtime_error("half a header");
    const auto length = read_number<std::uint64_t>(rest);
    if (read_number<std::uint32_t>(rest.substr(8)) != masked_crc32c(rest.substr(0, 8)) || rest.size() < length + 16 ||
        read_number<std::uint32_t>(rest.substr(12 + length)) != masked_crc32c(rest.substr(12, length))) {
      throw std::runtime_error("a damaged or unfinished record");
    }
    Point& point = points.emplace_back();
    protozero::pbf_reader event(rest.data() + 12, length);
    while (event.next()) {
      if (event.tag() == 2) {
        point.step = event.get_int64();
      } else if (event.tag() == 3) {
        point.tag = event.get_string();
      } else if (event.tag() == 5) {
        protozero::pbf_reader summary = event.get_message();
        summary.next();
        for (protozero::pbf_reader value = summary.get_message(); value.next();) {
          if (value.tag() == 1) {
            point.tag = value.get_string();
          } else if (value.tag() == 2) {
            point.value = value.get_float();
          } else {
            value.skip();
          }
        }
      } else {
        event.skip();
      }
    }
    rest.remove_prefix(length + 16);
  }
  return points;
}

TEST(EventFile, HoldsWholeRecordsAfterEachFlush) {
  const TemporaryFolder folder;
  EventFile file(folder.path() / "a" / "b");
  EXPECT_THAT(file.path().filename().string(),
              testing::MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\..+\\." + std::to_string(getpid()) + "\\.0"));
  EXPECT_EQ(std::filesystem::file_size(file.path()), 0u);
  file.add_scalar("lm loss", 2.5, 7);
  file.flush();
  file.add_scalar("lm loss", 1.5, std::int64_t{1} << 40);
  std::vector<Point> points = read_points(file.path());
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].tag, "brain.Event:2");
  EXPECT_EQ(points[1].tag, "lm loss");
  EXPECT_EQ(points[1].value, 2.5f);
  EXPECT_EQ(points[1].step, 7);
  file.flush();
  file.flush();
  points = read_points(file.path());
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[2].step, std::int64_t{1} << 40);
}

TEST(EventFile, FlushesByItselfWhenMuchIsCollectedAndAtTheEnd) {
  const TemporaryFolder folder;
  std::filesystem::path path;
  {
    EventFile file(folder.path());
    path = file.path();
    for (int i = 0; i < 10000; ++i) file.add_scalar("lm loss", i, i);
    const std::size_t num_written = read_points(path).size();
    EXPECT_GT(num_written, 5000u);
    EXPECT_LT(num_written, 10001u);
  }
  EXPECT_EQ(read_points(path).size(), 10001u);
}

TEST(EventFile, TwoInOneSecondAreTwoFiles) {
  const TemporaryFolder folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path());
  EXPECT_NE(first.path(), second.path());
}

TEST(EventFile, FolderThatCannotBeMadeIsAUserError) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "in the way";
  EXPECT_THROW(EventFile(folder.path() / "file"), base::UserError);
}

TEST(EventFile, FullDiskIsSaidOnceCountedAndLeavesWholeRecords) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.flush();
  {
    const FileSizeLimit limit(std::filesystem::file_size(file.path()) + 70);  // room for one record and a half
    const auto add_two_and_flush = [&file] {
      file.add_scalar("lm loss", 1, 1);
      file.add_scalar("lm loss", 2, 2);
      file.flush();
    };
    EXPECT_THROW(add_two_and_flush(), std::runtime_error);
    EXPECT_EQ(file.num_lost(), 2u);
    EXPECT_EQ(read_points(file.path()).size(), 1u);
    EXPECT_NO_THROW(add_two_and_flush());
    EXPECT_EQ(file.num_lost(), 4u);
  }
  file.add_scalar("lm loss", 3, 3);  // there is room again
  file.flush();
  EXPECT_EQ(file.num_lost(), 4u);
  const std::vector<Point> points = read_points(file.path());
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].step, 3);
}

/// "tag@step=value", joined by newlines.
std::string describe(const std::filesystem::path& path) {
  std::string text;
  const std::vector<Point> points = read_points(path);
  for (std::size_t i = 1; i < points.size(); ++i) {
    char value[32];
    std::snprintf(value, sizeof value, "%g", points[i].value);
    text += points[i].tag + "@" + std::to_string(points[i].step) + "=" + value + "\n";
  }
  return text;
}

TEST(TrainingScalars, NamesAndAxesOfMegatron) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  TrainingScalars scalars;
  scalars.iteration = 3;
  scalars.consumed_samples = 48;
  write_scalars(file, scalars);
  EXPECT_EQ(describe(file.path()), "");  // what is not known is not written
  scalars.learning_rate = 0.5;
  scalars.skipped_train_samples = 0;
  scalars.batch_size = 16;
  scalars.losses = {{"lm loss", 2.25}};
  scalars.loss_scale = 1;
  scalars.world_size = 8;
  scalars.grad_norm = 1.5;
  scalars.num_zeros = 4;
  scalars.params_norm = 12;
  scalars.memory_max_allocated_bytes = 1024;
  scalars.iteration_time_s = 0.25;
  scalars.throughput_tflops_per_gpu = 100;
  scalars.moe_losses = {{"load_balancing_loss", 1.25}};
  scalars.moe_layer_losses = {{"z_loss", {1, 2}}};
  scalars.multi_token_predictions = {
      {.loss = 3, .acceptance_rate_percent = 50, .cumulative_acceptance_rate_percent = 25}};
  write_scalars(file, scalars);
  EXPECT_EQ(describe(file.path()),
            "learning-rate@3=0.5\nlearning-rate vs samples@48=0.5\n"
            "batch-size@3=16\nbatch-size vs samples@48=16\n"
            "lm loss@3=2.25\nlm loss vs samples@48=2.25\n"
            "loss-scale@3=1\nloss-scale vs samples@48=1\n"
            "world-size@3=8\nworld-size vs samples@48=8\n"
            "grad-norm@3=1.5\ngrad-norm vs samples@48=1.5\n"
            "num-zeros@3=4\nnum-zeros vs samples@48=4\n"
            "params-norm@3=12\nparams-norm vs samples@48=12\n"
            "mem-max-allocated-bytes@3=1024\niteration-time@3=0.25\nthroughput@3=100\n"
            "load_balancing_loss@3=1.25\nmoe/z_loss_layer_0@3=1\nmoe/z_loss_layer_1@3=2\n"
            "mtp_1 loss@3=3\nmtp_1_acceptance_rate@3=50\nmtp_1_cumulative_acceptance_rate@3=25\n");
}

TEST(TrainingScalars, RemainingNames) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  TrainingScalars scalars;
  scalars.iteration = 1;
  scalars.skipped_train_samples = 5;
  scalars.max_attention_logit = 6;
  scalars.indexer_loss = 7;
  scalars.memory_reserved_bytes = 8;
  scalars.memory_allocated_bytes = 9;
  scalars.memory_allocated_count = 10;
  scalars.energy_per_iteration_joules = 11;
  scalars.power_watts = 12;
  write_scalars(file, scalars);
  EXPECT_EQ(describe(file.path()),
            "skipped-train-samples@1=5\nmax_attention_logit@1=6\nindexer loss@1=7\nmem-reserved-bytes@1=8\n"
            "mem-allocated-bytes@1=9\nmem-allocated-count@1=10\niter-energy/gpu@1=11\npower/gpu@1=12\n");
}

TEST(TrainingScalars, Validation) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  write_scalars(file, ValidationScalars{.iteration = 10, .consumed_samples = 80, .set_name = "", .loss = 2});
  write_scalars(file,
                ValidationScalars{
                    .iteration = 10, .consumed_samples = 80, .set_name = "code", .loss = 30, .has_perplexity = true});
  EXPECT_EQ(describe(file.path()),
            "lm loss validation@10=2\nlm loss validation vs samples@80=2\n"
            "lm loss validation-code@10=30\nlm loss validation-code vs samples@80=30\n"
            "lm loss validation-code ppl@10=4.85165e+08\nlm loss validation-code ppl vs samples@80=4.85165e+08\n");
}

}  // namespace
}  // namespace pharos::lens

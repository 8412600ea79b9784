// Index caches: found again, built anew when damaged, whole when several processes build at once.
#include "pharos/data/index/index_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "pharos/data/datasets.h"
#include "pharos/data/indexed/indexed_dataset.h"
#include "pharos/data/test_support.h"

namespace pharos::data {
namespace {

namespace fs = std::filesystem;

struct Builder {
  const std::string cache;
  std::vector<std::string> warnings = {};

  std::unique_ptr<SampleDataset> build(bool blend = false) {
    GptDatasetOptions options;
    options.set_tokenizer(ByteTokenizer());
    options.seq_length = 64;
    options.path_to_cache = cache;
    options.warn = [this](const std::string& text) { warnings.push_back(text); };
    const std::string licences = (kFixtures / "licences").string();
    DataSources sources{.blend = {licences}, .split = "969,30,1"};
    if (blend) sources.blend = {"0.7", licences, "0.3", (kFixtures / "notices").string()};
    return std::move(build_datasets(sources, {6900, 0, 0}, options)[0]);
  }
};

bool from_cache(const SampleDataset& dataset) { return dynamic_cast<const GptDataset&>(dataset).loaded_from_cache(); }

/// File of the cache whose name ends in `suffix`.
fs::path file_of(const std::string& cache, const std::string& suffix) {
  for (const auto& entry : fs::directory_iterator(cache)) {
    if (entry.path().string().ends_with(suffix)) return entry.path();
  }
  ADD_FAILURE() << "no " << suffix;
  return {};
}

TEST(IndexCache, IsFoundAgain) {
  const TemporaryFolder folder;
  Builder run{folder / "cache"};
  EXPECT_FALSE(from_cache(*run.build()));
  const auto loaded = run.build();
  EXPECT_TRUE(from_cache(*loaded));
  EXPECT_TRUE(run.warnings.empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(run.cache), {}), 4);
  const std::string name = file_of(run.cache, "description.txt").filename();
  EXPECT_THAT(name, testing::MatchesRegex("[0-9a-f]{32}-GPTDataset-train-description.txt"));
}

TEST(IndexCache, IsBuiltAgainWhenDamaged) {
  for (const bool blend : {false, true}) {
    const TemporaryFolder folder;
    Builder first{folder / "cache"};
    const auto fresh = first.build(blend);
    const Sample expected = fresh->get(1234);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(first.cache)) files.push_back(entry.path());
    for (const fs::path& file : files) {
      const std::string whole = base::read_file(file);
      const auto flipped = [&](std::size_t at) {
        std::string text = whole;
        text[at] = static_cast<char>(text[at] ^ 1);
        return text;
      };
      const std::string damaged[] = {"",         whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1),
                                     flipped(0), flipped(whole.size() - 4),         whole + "x"};
      for (const std::string& text : damaged) {
        write_text(file.string(), text);
        Builder run{folder / "cache"};
        const auto dataset = run.build(blend);
        EXPECT_EQ(dataset->get(1234).tokens, expected.tokens);
        ASSERT_EQ(run.warnings.size(), 1U) << file;
        EXPECT_THAT(run.warnings[0], testing::HasSubstr("built again"));
        EXPECT_EQ(base::read_file(file), whole) << "it was not repaired";
      }
      fs::remove(file);
      Builder run{folder / "cache"};
      EXPECT_EQ(run.build(blend)->get(1234).tokens, expected.tokens);
      EXPECT_TRUE(run.warnings.empty()) << "a missing file is no damage";
    }
  }
}

TEST(IndexCache, OfOtherDataUnderTheSameNameIsNotUsed) {
  const TemporaryFolder folder;
  const auto copy = [&](const char* name) {
    for (const char* extension : {".bin", ".idx"}) {
      fs::copy_file((kFixtures / name).string() + extension, folder / (std::string("data") + extension),
                    fs::copy_options::overwrite_existing);
    }
  };
  std::vector<std::string> warnings;
  GptDatasetOptions options;
  options.set_tokenizer(ByteTokenizer());
  options.seq_length = 64;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto build = [&] { return build_datasets({.blend = {folder / "data"}, .split = "1"}, {100, 0, 0}, options); };
  copy("licences");
  build();
  EXPECT_TRUE(fs::exists(folder / "data/cache/GPTDataset_indices")) << "the place without path_to_cache";
  copy("notices");
  EXPECT_FALSE(from_cache(*build()[0]));
  EXPECT_EQ(warnings.size(), 1U);
  options.add_extra_token_to_sequence = false;  // not in the name, changes the samples
  EXPECT_EQ(build()[0]->length(), 42087 / 64);
}

TEST(IndexCache, ThatCannotBeWrittenIsAWarning) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  Builder run{folder / "file"};
  EXPECT_EQ(run.build()->length(), 8520);
  ASSERT_EQ(run.warnings.size(), 1U);
  EXPECT_THAT(run.warnings[0], testing::HasSubstr("cannot be written"));
}

TEST(IndexCache, IsWholeWhenProcessesBuildAtOnce) {
  const TemporaryFolder folder;
  Builder reference{folder / "reference"};
  const Sample expected = reference.build()->get(77);
  constexpr int kProcesses = 4;
  for (int round = 0; round < 5; ++round) {
    const std::string cache = folder / ("cache" + std::to_string(round));
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        Builder run{cache};
        bool right = true;
        for (int repeat = 0; repeat < 3; ++repeat) right = right && run.build()->get(77).tokens == expected.tokens;
        ::_exit(right && run.warnings.empty() ? 0 : 1);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    Builder after{cache};
    EXPECT_TRUE(from_cache(*after.build()));
    EXPECT_EQ(std::distance(fs::directory_iterator(cache), {}), 4) << "temporary files are left";
  }
}

}  // namespace
}  // namespace pharos::data

// Checkpoints of several ranks: saved in one layout, loaded in another; failures of one rank.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/safetensors.h"
#include "pharos/checkpoint/test_support.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::OddModel;
using test::same;
using test::Sharding;
using test::SmallModel;
using test::TemporaryFolder;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TrainState state_at(std::int64_t step) {
  TrainState state;
  state.step = step;
  return state;
}

struct Layout {
  std::int64_t tensor;
  std::int64_t data;
  Sharding sharding;
  std::int64_t pipeline = 1;
  bool tied = true;
  comm::Mesh mesh() const { return {tensor * data * pipeline, {.tensor = tensor, .pipeline = pipeline}}; }
};

std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << "tp " << layout.tensor << " dp " << layout.data << " pp " << layout.pipeline << " sharding "
             << static_cast<int>(layout.sharding);
}

std::vector<Layout> all_layouts() {
  std::vector<Layout> layouts;
  for (const std::int64_t tensor : {1, 2, 4}) {
    for (const std::int64_t data : {1, 2, 3}) {
      for (const Sharding sharding : {Sharding::kWhole, Sharding::kState, Sharding::kStateAndWeights})
        layouts.push_back({tensor, data, sharding});
    }
  }
  return layouts;
}

/// Saves a model of seed 7 as all ranks of `layout`. Returns the folder.
fs::path save_as(const Layout& layout, const fs::path& folder) {
  const comm::Mesh mesh = layout.mesh();
  test::Agreement agreement(mesh.world_size());
  test::run_ranks(mesh.world_size(), [&](std::int64_t rank) {
    const OddModel model(mesh, rank, 7, layout.sharding, 12, layout.tied);
    save(model.contents, state_at(5),
         {.save = folder, .all_agree = [&](bool ok) { return agreement(ok); }, .writer = ::getpid()}, mesh, rank);
  });
  return folder / "iter_0000005";
}

/// Values that are none of the model's, padding included.
void spoil(const Contents& contents) {
  for (const Held& held : contents) held.values.fill_(std::nan(""));
}

TEST(Reshard, EveryLayoutLoadsFromEveryOtherBitwise) {
  for (const Layout& saved : all_layouts()) {
    const TemporaryFolder folder;
    const fs::path checkpoint = save_as(saved, folder.path());
    const VerifyReport report = verify(checkpoint);
    ASSERT_THAT(report.problems, IsEmpty());
    EXPECT_EQ(report.num_tensors, 33u);  // 11 pieces, weights and two moments
    for (const Layout& layout : all_layouts()) {
      if (layout.sharding == Sharding::kWhole && layout.data > 1) continue;  // copies of one another
      const comm::Mesh mesh = layout.mesh();
      for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        // Another padding of the vocabulary too.
        const OddModel expected(mesh, rank, 7, layout.sharding, 16), other(mesh, rank, 8, layout.sharding, 16);
        spoil(other.contents);
        load(other.contents, checkpoint, {.verify_checksums = false}, mesh, rank);
        ASSERT_TRUE(same(expected.contents, other.contents)) << saved << " -> " << layout << " rank " << rank;
      }
    }
  }
}

// Parameters, and states with them, move between pipeline ranks; a tied copy is loaded, but not stored.
TEST(Reshard, PipelinesLoadFromEveryOtherBitwise) {
  using enum Sharding;
  for (const bool tied : {false, true}) {
    const Layout layouts[] = {{1, 1, kWhole, 1, tied}, {1, 2, kState, 2, tied},
                              {1, 1, kWhole, 4, tied}, {1, 2, kStateAndWeights, 2, tied},
                              {2, 1, kWhole, 2, tied}, {2, 2, kStateAndWeights, 4, tied}};
    for (const Layout& saved : layouts) {
      const TemporaryFolder folder;
      const fs::path checkpoint = save_as(saved, folder.path());
      const VerifyReport report = verify(checkpoint);
      ASSERT_THAT(report.problems, IsEmpty());
      EXPECT_EQ(report.num_tensors, 33u);
      for (const Layout& layout : layouts) {
        const comm::Mesh mesh = layout.mesh();
        for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
          const OddModel expected(mesh, rank, 7, layout.sharding, 16, tied);
          const OddModel other(mesh, rank, 8, layout.sharding, 16, tied);
          spoil(other.contents);
          load(other.contents, checkpoint, {.verify_checksums = false}, mesh, rank);
          ASSERT_TRUE(same(expected.contents, other.contents)) << saved << " -> " << layout << " rank " << rank;
        }
      }
    }
  }
}

TEST(Reshard, SurplusIsJudgedWithThePiecesOfAllStages) {
  const TemporaryFolder folder;
  const fs::path saved = save_as({1, 1, Sharding::kWhole}, folder.path());
  const comm::Mesh one(1, {}), mesh(2, {.pipeline = 2});
  const OddModel whole(one, 0, 7, Sharding::kWhole), stage(mesh, 1, 7, Sharding::kWhole);
  std::vector<tensor::Parameter*> parameters;
  for (std::size_t i = 0; i < 8; ++i) parameters.push_back(&whole.parameter(i));
  LoadOptions options;
  EXPECT_NO_THROW(load(stage.contents, saved, options, mesh, 1));
  options.model_pieces = piece_names(parameters);
  EXPECT_NO_THROW(load(stage.contents, saved, options, mesh, 1));
  options.model_pieces->erase("q.weight");
  EXPECT_THAT([&] { load(stage.contents, saved, options, mesh, 1); },
              ::testing::ThrowsMessage<base::UserError>(
                  HasSubstr("3 not in the model: exp_avg/q.weight, exp_avg_sq/q.weight, q.weight")));
}

TEST(Reshard, SeveralPartsInOneFileHaveNamesOfTheirOwn) {
  const TemporaryFolder folder;
  const comm::Mesh mesh(2, {});
  // Two ranks share a matrix of 5 rows and 3 columns; the first one's range ends inside the third row.
  test::Agreement agreement(2);
  const at::Tensor values = at::arange(15, at::kFloat);
  test::run_ranks(2, [&](std::int64_t rank) {
    tensor::Parameter parameter;
    parameter.name = "matrix";
    parameter.pieces = {{"matrix", {5, 3}, {}, {}}};
    tensor::declare(parameter, at::kFloat, mesh, rank);
    const Contents contents{
        {&parameter, "", rank == 0 ? values.narrow(0, 0, 8) : values.narrow(0, 8, 7), rank == 0 ? 0 : 8, true}};
    save(contents, state_at(1),
         {.save = folder.path(), .all_agree = [&](bool ok) { return agreement(ok); }, .writer = ::getpid()}, mesh,
         rank);
  });
  const Manifest manifest = read_manifest(folder.path() / "iter_0000001");
  std::vector<std::string> entries;
  for (const StoredSlice& slice : manifest.tensors.at("matrix").slices)
    entries.push_back(slice.file + " " + slice.entry + " " + shape_text(slice.shape));
  EXPECT_THAT(entries,
              ElementsAre("rank_00000.safetensors matrix@0,0 [2, 3]", "rank_00000.safetensors matrix@2,0 [1, 2]",
                          "rank_00001.safetensors matrix@2,2 [1, 1]", "rank_00001.safetensors matrix@3,0 [2, 3]"));
}

TEST(Reshard, PaddingAndEmptyFragmentsAreNotStored) {
  const TemporaryFolder folder;
  const comm::Mesh mesh(1, {});
  const SmallModel model(mesh, 0, 1);
  // Of 12 rows of 4 elements the last two are padding.
  const auto words = model.contents[0].values.flatten();
  const auto fragment = [&](std::int64_t first, std::int64_t count) {
    return Held{&model.parameter(0), "", words.narrow(0, first, count).clone(), first, true};
  };
  const Contents contents{fragment(0, 40), fragment(40, 3), fragment(43, 0), fragment(43, 5)};
  save(contents, state_at(1), {.save = folder.path()}, mesh, 0);
  const Manifest manifest = read_manifest(folder.path() / "iter_0000001");
  ASSERT_EQ(manifest.tensors.size(), 1u);
  EXPECT_EQ(manifest.tensors.begin()->second.slices.size(), 1u);
  const Contents other{fragment(38, 7), fragment(43, 5), fragment(48, 0)};
  spoil(other);
  load(other, folder.path() / "iter_0000001", {}, mesh, 0);
  EXPECT_TRUE(at::equal(other[0].values, words.narrow(0, 38, 7)));
  EXPECT_TRUE(at::equal(other[1].values, at::zeros({5})));
}

TEST(Reshard, FragmentsOfAnotherTypeAreConverted) {
  const TemporaryFolder folder;
  const fs::path saved = save_as({2, 3, Sharding::kState}, folder.path());
  const comm::Mesh mesh(2, {});
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const OddModel expected(mesh, rank, 7, Sharding::kStateAndWeights);
    OddModel other(mesh, rank, 8, Sharding::kStateAndWeights);
    for (Held& held : other.contents) held.values = held.values.to(at::kBFloat16);
    load(other.contents, saved, {}, mesh, rank);
    for (std::size_t i = 0; i < expected.contents.size(); ++i)
      EXPECT_TRUE(at::equal(other.contents[i].values, expected.contents[i].values.to(at::kBFloat16))) << i;
  }
}

// A 16-bit tensor of odd length in front of a 32-bit one would leave the latter misaligned, and read by copying all.
TEST(Reshard, MixedTypesLieAligned) {
  const TemporaryFolder folder;
  const comm::Mesh mesh(1, {});
  OddModel model(mesh, 0, 1, Sharding::kWhole);
  for (Held& held : model.contents) {
    if (held.kind.empty()) held.values = held.values.to(at::kBFloat16);
  }
  save(model.contents, state_at(1), {.save = folder.path()}, mesh, 0);
  const SafetensorsFile file(folder.path() / "iter_0000001/rank_00000.safetensors");
  for (const TensorEntry& entry : file.header().tensors)
    EXPECT_EQ(entry.begin_bytes % element_size_bytes(entry.type), 0u) << entry.name;
}

TEST(Reshard, SurplusAndMissingAreSeenWithFragmentsToo) {
  const TemporaryFolder folder;
  const fs::path saved = save_as({1, 2, Sharding::kState}, folder.path());
  const comm::Mesh mesh(2, {});
  for (const Sharding sharding : {Sharding::kState, Sharding::kStateAndWeights}) {
    OddModel model(mesh, 1, 7, sharding);
    model.parameter(2).pieces[0].name = "renamed.weight";
    const auto error = [&]() -> std::string {
      try {
        load(model.contents, saved, {}, mesh, 1);
      } catch (const base::UserError& caught) {
        return caught.what();
      }
      return "no error";
    }();
    EXPECT_THAT(error, HasSubstr("missing in the checkpoint: renamed.weight, exp_avg/renamed.weight"));
    EXPECT_THAT(error, HasSubstr("not in the model: exp_avg/linear_proj.weight"));
    // State that lies on other ranks alone need not be listed.
    model.parameter(2).pieces[0].name = "linear_proj.weight";
    std::erase_if(model.contents, [](const Held& held) { return !held.kind.empty() && held.values.numel() == 0; });
    EXPECT_NO_THROW(load(model.contents, saved, {}, mesh, 1));
  }
}

TEST(Reshard, ValuesThatDoNotFitTheirParameterAreRefused) {
  const TemporaryFolder folder;
  const comm::Mesh mesh(1, {});
  const SmallModel model(mesh, 0, 1);
  const at::Tensor row = at::zeros({4});
  for (const Held& wrong : {Held{&model.parameter(0), "", row, 0, false}, Held{&model.parameter(0), "", row, 45, true},
                            Held{&model.parameter(0), "", row, -1, true},
                            Held{&model.parameter(0), "", model.contents[0].values, 0, true}}) {
    EXPECT_THROW(save({wrong}, state_at(1), {.save = folder.path()}, mesh, 0), base::TrainingError);
    EXPECT_THAT(complete_iterations(folder.path()), IsEmpty());
  }
}

TEST(Reshard, ACheckpointThatWouldHaveHolesIsNotSaved) {
  const TemporaryFolder folder;
  const comm::Mesh mesh(1, {});
  const SmallModel model(mesh, 0, 1);
  const Contents half{{&model.parameter(3), "", at::zeros({2}), 0, true}};
  try {
    save(half, state_at(1), {.save = folder.path()}, mesh, 0);
    FAIL();
  } catch (const base::TrainingError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'norm.weight' do not cover it"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Reshard, CheckpointsOfTheFirstFormatLoad) {
  const fs::path saved = fs::path(PHAROS_TEST_DATA) / "checkpoint" / "format_1";
  EXPECT_THAT(verify(saved).problems, IsEmpty());
  for (const std::int64_t size : {1, 2, 4}) {
    const comm::Mesh mesh(size, {.tensor = size});
    for (std::int64_t rank = 0; rank < size; ++rank) {
      const SmallModel expected(mesh, rank, 7), other(mesh, rank, 8);
      EXPECT_EQ(load(other.contents, saved, {}, mesh, rank).train_state.seed, 0xfedcba9876543210);
      EXPECT_TRUE(same(expected.contents, other.contents)) << size << " rank " << rank;
    }
  }
}

/// What became of a save in which something goes wrong.
struct Failures {
  std::vector<std::string> messages;  ///< per rank; empty: it returned
  std::int64_t training_errors = 0;
};

/// Saves step 2 with four ranks. `disturb` is called after each agreement with its number, from 1, by rank 0 before any
/// rank goes on.
Failures save_disturbed(const fs::path& folder, const std::function<void(int agreement, const fs::path&)>& disturb) {
  const comm::Mesh mesh(4, {.tensor = 2});
  const fs::path temporary = folder / temporary_folder_name(2, ::getpid());
  test::Agreement agreement(4), disturbance(4);
  Failures failures{std::vector<std::string>(4), 0};
  std::atomic<std::int64_t> training_errors = 0;
  test::run_ranks(4, [&](std::int64_t rank) {
    int count = 0;
    const auto all_agree = [&](bool ok) {
      const bool agreed = agreement(ok);
      if (++count, rank == 0) disturb(count, temporary);
      disturbance(true);
      return agreed;
    };
    const OddModel model(mesh, rank, 7, Sharding::kStateAndWeights);
    try {
      save(model.contents, state_at(2), {.save = folder, .all_agree = all_agree, .writer = ::getpid()}, mesh, rank);
    } catch (const base::TrainingError& error) {
      failures.messages[static_cast<std::size_t>(rank)] = error.what();
      ++training_errors;
    } catch (const base::UserError& error) {
      failures.messages[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  failures.training_errors = training_errors;
  return failures;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// A folder where a file is to be written stands for a disk that fails. All ranks leave with the same verdict, the one
// that failed with its reason; the earlier checkpoint is as it was.
TEST(Reshard, FailureOnAnyRankIsOneOfAll) {
  struct Case {
    const char* obstacle;
    int agreement;  ///< after which it appears
    std::size_t failing_rank;
  };
  for (const Case& item :
       {Case{"rank_00000.safetensors", 2, 0}, Case{"rank_00002.safetensors", 2, 2},
        Case{"rank_00003.safetensors.json", 2, 3}, Case{"manifest.json", 2, 0}, Case{"train_state.json", 3, 0}}) {
    const TemporaryFolder folder;
    test::write_text(folder.path() / "latest_checkpointed_iteration.txt", "5");
    save_as({2, 1, Sharding::kWhole}, folder.path());
    const Failures failures = save_disturbed(folder.path(), [&](int agreement, const fs::path& temporary) {
      if (agreement == item.agreement) fs::create_directories(temporary / item.obstacle / "x");
    });
    EXPECT_EQ(failures.training_errors, 4) << item.obstacle;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_THAT(failures.messages[rank], HasSubstr("iteration 2 could not be saved"));
      EXPECT_THAT(failures.messages[rank], HasSubstr("The last good checkpoint is"));
      EXPECT_THAT(failures.messages[rank],
                  HasSubstr(rank == item.failing_rank ? item.obstacle : "It failed on another rank"));
    }
    EXPECT_THAT(names_in(folder.path()), ElementsAre("iter_0000005", "latest_checkpointed_iteration.txt"));
    EXPECT_THAT(verify(folder.path() / "iter_0000005").problems, IsEmpty());
    EXPECT_EQ(find_checkpoint(folder.path())->folder, folder.path() / "iter_0000005");
  }
}

TEST(Reshard, FolderThatCannotBeMadeIsAUserErrorOnAllRanks) {
  const TemporaryFolder folder;
  test::write_text(folder.path() / "file", "x");
  const Failures failures = save_disturbed(folder.path() / "file" / "checkpoints", [](int, const fs::path&) {});
  EXPECT_EQ(failures.training_errors, 0);
  for (const std::string& message : failures.messages) EXPECT_THAT(message, HasSubstr("file/checkpoints"));
}

// Three of four files are small enough for the limit, which stands for a full disk.
TEST(Reshard, FullDiskOnOneRankFailsOnAll) {
  const TemporaryFolder folder;
  save_as({1, 1, Sharding::kWhole}, folder.path());
  const comm::Mesh mesh(4, {});
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  test::Agreement agreement(4);
  std::vector<std::string> messages(4);
  test::run_ranks(4, [&](std::int64_t rank) {
    const SmallModel model(mesh, rank, 1);  // copies: rank 0 writes
    try {
      save(model.contents, state_at(6),
           {.save = folder.path(), .all_agree = [&](bool ok) { return agreement(ok); }, .writer = ::getpid()}, mesh,
           rank);
    } catch (const base::TrainingError& error) {
      messages[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(messages[0], HasSubstr("rank_00000.safetensors"));
  for (std::size_t rank = 1; rank < 4; ++rank) EXPECT_THAT(messages[rank], HasSubstr("It failed on another rank"));
  EXPECT_THAT(names_in(folder.path()), ElementsAre("iter_0000005", "latest_checkpointed_iteration.txt"));
}

}  // namespace
}  // namespace pharos::checkpoint

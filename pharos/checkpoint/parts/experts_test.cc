// Checkpoints of models with experts, buffers and frozen weights: saved in one layout, loaded in another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/checkpoint/checkpoint.h"
#include "pharos/checkpoint/test_support.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;
using comm::MeshDim;
using test::Sharding;
using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The parameters of SmallModel, a router with its bias, and experts, as two pipeline ranks would divide them.
class ExpertModel : public test::SmallModel {
 public:
  ExpertModel(const comm::Mesh& mesh, std::int64_t rank, std::uint64_t seed, Sharding sharding,
              const std::vector<std::string>& frozen = {})
      : SmallModel(mesh, rank, seed) {
    const auto normal = tensor::Init::normal(1);
    const tensor::Split whole{0, MeshDim::kExpert};
    add({{"router.weight", {4, 3}, {}, normal}});
    add({{"router.expert_bias", {4}, {}, normal}});
    parameters_.back()->trainable = false;
    add({{"experts.gate.weight", {4, 6, 3}, {whole, {1, MeshDim::kExpertTensor}}, normal},
         {"experts.up.weight", {4, 6, 3}, {whole, {1, MeshDim::kExpertTensor}}, normal}},
        1);
    add({{"experts.linear_fc2.weight", {4, 3, 6}, {whole, {2, MeshDim::kExpertTensor}}, normal}}, 1);
    add({{"experts.linear_fc2.bias", {4, 3}, {whole}, normal}}, 1);
    if (mesh.size(MeshDim::kPipeline) == 2) {
      const auto begin = parameters_.begin();
      if (mesh.coordinate(rank, MeshDim::kPipeline) == 0) {
        parameters_.erase(begin + 6, parameters_.end());
      } else {
        parameters_.erase(begin, begin + 6);
      }
    }
    for (const auto& parameter : parameters_) {
      if (std::find(frozen.begin(), frozen.end(), parameter->pieces.front().name) != frozen.end())
        parameter->trainable = false;
    }
    fill(seed);
    std::erase_if(contents, [](const Held& held) { return !held.kind.empty() && !held.parameter->trainable; });
    if (sharding != Sharding::kWhole) shard(sharding == Sharding::kStateAndWeights);
  }

  const Held& held(const std::string& kind, const std::string& piece) const {
    return *std::find_if(contents.begin(), contents.end(), [&](const Held& held) {
      return held.kind == kind && held.parameter->pieces.front().name == piece;
    });
  }

 private:
  /// Equal parts of each trainable parameter, over the ranks that hold copies of it.
  void shard(bool with_weights) {
    for (Held& held : contents) {
      if ((held.kind.empty() && !with_weights) || !held.parameter->trainable) continue;
      const auto ranks = tensor::is_expert(*held.parameter) ? mesh_.group(rank_, {MeshDim::kExpertData})
                                                            : mesh_.group(rank_, {MeshDim::kData, MeshDim::kContext});
      const auto count = static_cast<std::int64_t>(ranks.size());
      const std::int64_t mine = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
      const std::int64_t numel = held.values.numel(), length = (numel + count - 1) / count;
      held.first_element = std::min(mine * length, numel);
      held.values =
          held.values.flatten().narrow(0, held.first_element, std::min(length, numel - held.first_element)).clone();
      held.is_fragment = true;
      if (held.kind.empty()) tensor::declare(*held.parameter, at::kFloat, mesh_, rank_);
    }
  }
};

struct Layout {
  const char* name;
  std::int64_t num_ranks;
  comm::ParallelSizes sizes;
  Sharding sharding;
  comm::Mesh mesh() const { return {num_ranks, sizes}; }
};

fs::path save_as(const Layout& layout, const fs::path& folder, const std::vector<std::string>& frozen = {}) {
  const comm::Mesh mesh = layout.mesh();
  test::Agreement agreement(mesh.world_size());
  TrainState state;
  state.step = 5;
  test::run_ranks(mesh.world_size(), [&](std::int64_t rank) {
    const ExpertModel model(mesh, rank, 7, layout.sharding, frozen);
    save(model.contents, state,
         {.save = folder, .all_agree = [&](bool ok) { return agreement(ok); }, .writer = ::getpid()}, mesh, rank);
  });
  return folder / "iter_0000005";
}

TEST(ReshardExperts, EveryLayoutLoadsFromEveryOtherBitwise) {
  using enum Sharding;
  const Layout layouts[] = {
      {"one rank", 1, {}, kWhole},
      {"ep2", 2, {.expert = 2}, kWhole},
      {"ep4", 4, {.expert = 4}, kStateAndWeights},
      {"ep2 edp2", 4, {.expert = 2}, kWhole},
      {"ep2 edp2 states", 4, {.expert = 2}, kState},
      {"ep2 edp2 weights", 4, {.expert = 2}, kStateAndWeights},
      {"tp2 edp2", 2, {.tensor = 2}, kState},
      {"tp2 ep2 etp1", 4, {.tensor = 2, .expert = 2}, kStateAndWeights},
      {"tp2 ep2 etp2", 4, {.tensor = 2, .expert = 2, .expert_tensor = 2}, kWhole},
      {"etp2", 2, {.tensor = 2, .expert_tensor = 2}, kState},
      {"cp2 ep2", 4, {.context = 2, .expert = 2}, kStateAndWeights},
      {"pp2 ep2", 4, {.pipeline = 2, .expert = 2}, kState},
      {"pp2 ep2 edp2", 8, {.pipeline = 2, .expert = 2}, kStateAndWeights},
  };
  for (const Layout& saved : layouts) {
    const TemporaryFolder folder;
    const fs::path checkpoint = save_as(saved, folder.path());
    const VerifyReport report = verify(checkpoint);
    ASSERT_THAT(report.problems, IsEmpty()) << saved.name;
    EXPECT_EQ(report.num_tensors, 3u * 12u - 2u);  // pieces and two moments, none of the bias
    for (const Layout& layout : layouts) {
      const comm::Mesh mesh = layout.mesh();
      for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        const ExpertModel expected(mesh, rank, 7, layout.sharding), other(mesh, rank, 8, layout.sharding);
        for (const Held& held : other.contents) held.values.fill_(std::nan(""));
        const LoadResult result = load(other.contents, checkpoint, {.verify_checksums = false}, mesh, rank);
        EXPECT_THAT(result.warnings, IsEmpty());
        ASSERT_TRUE(test::same(expected.contents, other.contents))
            << saved.name << " -> " << layout.name << " " << rank;
      }
    }
  }
}

// A weight that was frozen when the checkpoint was saved begins with fresh state, its main parameter with the weight;
// the state of one that is frozen now is left out. Both are said.
TEST(LoadState, FollowsWhatIsTrained) {
  using enum Sharding;
  for (const Sharding sharding : {kWhole, kState}) {
    const Layout layout{"ep2 edp2", 4, {.expert = 2}, sharding};
    const TemporaryFolder folder;
    const fs::path checkpoint = save_as(layout, folder.path(), {"router.weight", "experts.linear_fc2.weight"});
    const comm::Mesh mesh = layout.mesh();
    for (std::int64_t rank = 0; rank < 4; ++rank) {
      const ExpertModel expected(mesh, rank, 7, sharding);
      ExpertModel other(mesh, rank, 8, sharding, {"norm.weight", "router.weight"});
      const Held main{.parameter = other.held("", "experts.linear_fc2.weight").parameter,
                      .kind = "main_param",
                      .values = at::zeros({4 / 2 * 3 * 6}),
                      .is_fragment = true};
      for (const Held& held : other.contents) held.values.zero_();
      Contents wanted = other.contents;
      wanted.push_back(main);
      EXPECT_THROW(load(wanted, checkpoint, {}, mesh, rank), base::UserError);  // it has no main parameters at all
      wanted.pop_back();
      const LoadResult result = load(wanted, checkpoint, {}, mesh, rank);
      const auto is_loaded = [&](const std::string& kind, const std::string& piece) {
        return at::equal(other.held(kind, piece).values, expected.held(kind, piece).values);
      };
      EXPECT_TRUE(is_loaded("", "experts.linear_fc2.weight"));
      EXPECT_TRUE(is_loaded("", "norm.weight"));
      EXPECT_TRUE(is_loaded("exp_avg", "experts.linear_fc2.bias"));
      EXPECT_FALSE(other.held("exp_avg", "experts.linear_fc2.weight").values.any().item<bool>());
      EXPECT_THAT(result.warnings,
                  ElementsAre(HasSubstr("no exp_avg, exp_avg_sq of 1 weight: experts.linear_fc2.weight"),
                              HasSubstr("of 1 weight that is not trained now is left out: norm.weight")));
    }
  }
}

// Whichever rank one asks, and though it may train nothing itself, the change is that of the whole model.
TEST(LoadState, NamesWhatIsTrainedOnOtherStages) {
  const Layout layout{"pp2", 2, {.pipeline = 2}, Sharding::kWhole};
  const TemporaryFolder folder;
  const std::vector<std::string> router{"router.weight"}, bias{"experts.linear_fc2.bias"};
  const fs::path checkpoint = save_as(layout, folder.path(), bias);
  std::set<std::string> pieces, trained;
  const comm::Mesh one(1, {}), mesh = layout.mesh();
  const ExpertModel whole(one, 0, 7, Sharding::kWhole, router);
  for (const Held& held : whole.contents) {
    for (const tensor::Piece& piece : held.parameter->pieces) {
      pieces.insert(piece.name);
      if (held.parameter->trainable) trained.insert(piece.name);
    }
  }
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    for (const bool asks_for_state : {true, false}) {
      ExpertModel model(mesh, rank, 8, Sharding::kWhole, router);
      if (!asks_for_state) drop_state(model.contents);
      const LoadResult result =
          load(model.contents, checkpoint, {.model_pieces = pieces, .trained_pieces = trained}, mesh, rank);
      EXPECT_THAT(result.newly_trained, ElementsAre("experts.linear_fc2.bias"));
      EXPECT_THAT(result.warnings,
                  ElementsAre(HasSubstr("no exp_avg, exp_avg_sq of 1 weight: experts.linear_fc2.bias"),
                              HasSubstr("of 1 weight that is not trained now is left out: router.weight")));
    }
  }
}

TEST(LoadState, MainParametersOfNewlyTrainedWeightsAreTheWeights) {
  const TemporaryFolder folder;
  const comm::Mesh mesh(1, {});
  const auto with_main = [](ExpertModel& model) {
    Contents contents = model.contents;
    for (const Held& held : model.contents) {
      if (held.kind == "exp_avg")
        contents.push_back({.parameter = held.parameter, .kind = "main_param", .values = held.parameter->data.clone()});
    }
    return contents;
  };
  ExpertModel saved(mesh, 0, 7, Sharding::kWhole, {"norm.weight"});
  save(with_main(saved), {}, {.save = folder.path()}, mesh, 0);
  ExpertModel other(mesh, 0, 8, Sharding::kWhole);
  const Contents loaded = with_main(other);
  load(loaded, folder.path() / "iter_0000000", {}, mesh, 0);
  int num_mains = 0;
  for (const Held& held : loaded) {
    if (held.kind != "main_param") continue;
    EXPECT_TRUE(at::equal(held.values, saved.held("", held.parameter->pieces.front().name).values));
    ++num_mains;
  }
  EXPECT_EQ(num_mains, 8);
}

}  // namespace
}  // namespace pharos::checkpoint

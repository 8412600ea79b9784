#include "pharos/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "pharos/base/error.h"
#include "pharos/base/json.h"

namespace pharos::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<std::int64_t>>;

const std::map<std::string, MeshDim> kDense = {
    {"tp", MeshDim::kTensor}, {"cp", MeshDim::kContext}, {"dp", MeshDim::kData}, {"pp", MeshDim::kPipeline}};
const std::map<std::string, MeshDim> kExpert = {
    {"tp", MeshDim::kExpertTensor}, {"ep", MeshDim::kExpert}, {"dp", MeshDim::kExpertData}, {"pp", MeshDim::kPipeline}};

std::vector<MeshDim> parse_dims(const std::string& text, const std::map<std::string, MeshDim>& names) {
  std::vector<MeshDim> dims;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, '-');) dims.push_back(names.at(word));
  return dims;
}

Groups sorted(Groups groups) {
  std::sort(groups.begin(), groups.end());
  return groups;
}

// Every group of both layouts equals Megatron's RankGenerator. Groups of expert dimensions are expert groups; the
// pipeline groups are those of both layouts. The generators also give layouts whose pipeline groups differ; Megatron
// asserts against these later, a Mesh refuses them.
TEST(Mesh, GroupsEqualMegatron) {
  int num_compared = 0, num_refused = 0;
  const auto oracle = base::read_json_file(PHAROS_TEST_DATA "/megatron/ranks.json");
  for (const auto& expected : oracle.at("cases")) {
    ParallelSizes sizes{.tensor = expected.at("tp"),
                        .context = expected.at("cp"),
                        .pipeline = expected.at("pp"),
                        .expert = expected.at("ep"),
                        .expert_tensor = expected.at("etp")};
    sizes.tensor_pipeline_data_order = expected.at("order") == "tp-cp-ep-pp-dp";
    const std::int64_t world_size = expected.at("world_size");
    const auto compare = [&](const char* layout, const std::map<std::string, MeshDim>& names, const Mesh& mesh) {
      for (const auto& [dims, groups] : expected.at(layout).items()) {
        EXPECT_EQ(mesh.groups(parse_dims(dims, names)), sorted(groups.get<Groups>()))
            << layout << ' ' << dims << ' ' << expected;
        ++num_compared;
      }
    };
    if (expected.at("dense").at("pp") != expected.at("expert").at("pp")) {
      EXPECT_THROW(Mesh(world_size, sizes), base::UserError);
      ++num_refused;
      continue;
    }
    const Mesh mesh(world_size, sizes);
    compare("dense", kDense, mesh);
    compare("expert", kExpert, mesh);
  }
  EXPECT_EQ(num_compared, 6 * 15);
  EXPECT_EQ(num_refused, 1);
}

// rank == sum of coordinate * stride over the dense layout, likewise over the expert one; sizes multiply to the world.
TEST(Mesh, CoordinatesAndSizesCoverTheWorld) {
  for (const bool pipeline_first : {false, true}) {
    const Mesh mesh(48, {.tensor = 2,
                         .context = 2,
                         .pipeline = 3,
                         .expert = 4,
                         .expert_tensor = 1,
                         .tensor_pipeline_data_order = pipeline_first});
    EXPECT_EQ(mesh.size(MeshDim::kData), 4);
    EXPECT_EQ(mesh.size(MeshDim::kExpertData), 4);
    std::vector<MeshDim> dense = {MeshDim::kTensor, MeshDim::kContext, MeshDim::kData, MeshDim::kPipeline};
    std::vector<MeshDim> expert = {MeshDim::kExpertTensor, MeshDim::kExpert, MeshDim::kExpertData, MeshDim::kPipeline};
    for (auto* order : {&dense, &expert}) {
      if (pipeline_first) std::swap((*order)[2], (*order)[3]);
      for (std::int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        std::int64_t sum = 0, stride = 1;
        for (const MeshDim dim : *order) {
          sum += mesh.coordinate(rank, dim) * stride;
          stride *= mesh.size(dim);
        }
        EXPECT_EQ(sum, rank);
      }
    }
  }
}

TEST(Mesh, GroupHoldsItsRankAndIsAscending) {
  const Mesh mesh(16, {.tensor = 2, .context = 2, .pipeline = 2});
  EXPECT_THAT(mesh.group(5, {MeshDim::kData}), ElementsAre(1, 5));
  EXPECT_THAT(mesh.group(5, {MeshDim::kPipeline, MeshDim::kTensor}), ElementsAre(4, 5, 12, 13));
  EXPECT_THAT(mesh.group(5, {MeshDim::kExpertData}), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_STREQ(mesh_dim_name(MeshDim::kExpertTensor), "etp");
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::UserError& error) {
    return error.what();
  }
  return "no UserError";
}

// V1 and V2 name world size and product; V3 says which setting to change. The nearest sound layout is accepted.
TEST(Mesh, RefusesImpossibleLayouts) {
  struct Case {
    std::int64_t world_size;
    ParallelSizes sizes;
    std::vector<const char*> words;
  };
  const Case cases[] = {
      {12,
       {.tensor = 2, .context = 2, .pipeline = 2},
       {"world size 12 is not divisible by TP*PP*CP = 8", "multiple of 8"}},
      {8,
       {.tensor = 2, .pipeline = 2, .expert = 3, .expert_tensor = 1},
       {"world size 8 is not divisible by ETP*EP*PP = 6"}},
      {8, {.tensor = 0}, {"TP*PP*CP = 0"}},
      {0, {}, {"world size 0"}},
      {8,
       {.tensor = 2, .pipeline = 2, .expert = 4, .expert_tensor = 1, .tensor_pipeline_data_order = true},
       {"pipeline groups of dense and expert parameters differ", "dist.use_tp_pp_dp_mapping=false"}},
  };
  for (const Case& c : cases) {
    const std::string message = message_of([&] { Mesh(c.world_size, c.sizes); });
    for (const char* words : c.words) EXPECT_THAT(message, HasSubstr(words));
  }
  EXPECT_NO_THROW(Mesh(16, {.tensor = 2, .context = 2, .pipeline = 2}));
  EXPECT_NO_THROW(Mesh(8, {.tensor = 2, .pipeline = 2, .expert = 2, .tensor_pipeline_data_order = true}));
}

}  // namespace
}  // namespace pharos::comm

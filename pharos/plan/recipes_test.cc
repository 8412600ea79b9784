// Every shipped recipe can be planned, and has the parameters its model is known for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "pharos/config/derived.h"
#include "pharos/config/resolve.h"
#include "pharos/plan/plan.h"
#include "pharos/plan/render.h"

namespace pharos::plan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path recipes() { return fs::path(PHAROS_TEST_DATA).parent_path().parent_path() / "recipes"; }

/// "…_16gpu_…", or the fewest ranks that its parallel sizes allow.
std::int64_t world_size_of(const std::string& name, const std::string& path,
                           const std::vector<std::string>& overrides) {
  std::smatch found;
  if (std::regex_search(name, found, std::regex("_([0-9]+)gpu_"))) return std::stoll(found[1]);
  return smallest_world_size(config::resolve({.recipe = path, .overrides = overrides}).config.model);
}

/// Two microbatches a pipeline rank: enough for every schedule, and quickly simulated.
std::string small_batch(const std::string& name) {
  const std::string path = (recipes() / (name + ".yaml")).string();
  const config::RunConfig config = config::resolve({.recipe = path}).config;
  const std::int64_t data = config::data_parallel_size(config.model, world_size_of(name, path, {}));
  return "train.global_batch_size=" +
         std::to_string(2 * *config.train.micro_batch_size * data * config.model.pipeline_model_parallel_size);
}

/// `name`: "models/llama3_8b". The vocabulary of a recipe that leaves it to its tokenizer is that of bytes.
Plan plan_of(const std::string& name, const std::vector<std::string>& overrides = {}) {
  const std::string path = (recipes() / (name + ".yaml")).string();
  const std::int64_t world_size = world_size_of(name, path, overrides);
  const auto complete = [](config::ResolvedConfig& resolved) {
    if (!resolved.config.model.vocab_size)
      config::set_derived(resolved, "model.vocab_size", config::Value::of_integer(257), "tokenizer");
  };
  return make_plan(
      config::prepare({.recipe = path, .overrides = overrides}, world_size, config::Purpose::kPlan, complete),
      world_size);
}

std::int64_t total_of(const ParameterPlan& parameters, const std::string& component) {
  for (const auto& one : parameters.components) {
    if (one.name == component) return one.total;
  }
  return 0;
}

struct Known {
  const char* model;
  std::int64_t total;           // of the published files, to the last element; without multi-token prediction
  double published;             // billions, as its makers give it
  double published_active = 0;  // likewise; 0 for a dense model
  bool counts_look_up = true;   // the published figure counts the table of embeddings
};

// Counts of the weights that their makers published. DeepSeek-V3's, Moonlight's and Kimi-K2's have an expert bias.
const Known kKnown[] = {{"gpt2_124m", 124'439'808, 0.124},
                        {"gpt3_175b", 174'604'259'328, 175},
                        {"llama32_1b", 1'235'814'400, 1.24},
                        {"llama3_8b", 8'030'261'248, 8.03},
                        {"llama3_70b", 70'553'706'496, 70.6},
                        {"llama31_405b", 405'853'388'800, 405},
                        {"mistral_7b", 7'241'732'096, 7.24},
                        {"gemma2_2b", 2'614'341'888, 2.61},
                        {"qwen25_500m", 494'032'768, 0.49},
                        {"qwen25_7b", 7'615'616'512, 7.61},
                        {"qwen3_600m", 596'049'920, 0.6},
                        {"qwen3_8b", 8'190'735'360, 8.2},
                        {"qwen3_30b_a3b", 30'532'122'624, 30.5, 3.3},
                        {"qwen3_235b_a22b", 235'093'634'560, 235, 22},
                        {"mixtral_8x7b", 46'702'792'704, 46.7, 12.9},
                        {"gpt_oss_20b", 20'914'757'184, 20.9, 3.6, false},
                        {"gpt_oss_120b", 116'829'156'672, 116.8, 5.1, false},
                        {"deepseek_v2_lite", 15'706'484'224, 15.7, 2.4, false},
                        {"deepseek_v2", 235'741'434'880, 236, 21},
                        {"deepseek_v3", 671'026'419'200, 671, 37, false},
                        {"moonlight_16b", 15'960'110'208, 16, 3},
                        {"kimi_k2", 1'026'408'232'448, 1040, 32, false}};

TEST(Recipes, ModelsHaveThePublishedParameters) {
  constexpr double kRounding = 0.03;  // of figures with two or three digits
  for (const Known& known : kKnown) {
    SCOPED_TRACE(known.model);
    const ParameterPlan parameters = plan_of("models/" + std::string(known.model)).parameters;
    const std::int64_t predicted = total_of(parameters, "mtp");
    EXPECT_EQ(parameters.total - predicted, known.total);
    EXPECT_NEAR(static_cast<double>(known.total) / known.published / 1e9, 1, kRounding);
    if (known.published_active == 0) {
      EXPECT_EQ(parameters.active, parameters.total);
      continue;
    }
    const Plan alone = plan_of("models/" + std::string(known.model), {"model.mtp_num_layers=null"});
    const auto active = static_cast<double>(alone.parameters.active -
                                            (known.counts_look_up ? 0 : total_of(alone.parameters, "embedding")));
    EXPECT_NEAR(active / known.published_active / 1e9, 1, kRounding);
  }
}

// By hand: DeepSeek-V2-Lite, 27 layers, the first of them dense.
TEST(Recipes, DeepSeekV2LiteByHand) {
  const ParameterPlan parameters = plan_of("models/deepseek_v2_lite").parameters;
  const std::int64_t attention = 2048 * 16 * 192 + 2048 * (512 + 64) + 512 * 16 * 256 + 16 * 128 * 2048;
  EXPECT_EQ(total_of(parameters, "attention"), 27 * attention);
  EXPECT_EQ(total_of(parameters, "mlp"), 3 * 2048 * 10944);
  EXPECT_EQ(total_of(parameters, "experts"), 26LL * 64 * 3 * 2048 * 1408);
  EXPECT_EQ(total_of(parameters, "shared_experts"), 26 * 2 * 3 * 2048 * 1408);
  EXPECT_EQ(total_of(parameters, "router"), 26 * 64 * 2048);
  EXPECT_EQ(total_of(parameters, "norms"), 27 * (2 * 2048 + 512) + 2048);
  EXPECT_EQ(total_of(parameters, "embedding"), 102400 * 2048);
  EXPECT_EQ(total_of(parameters, "output"), 102400 * 2048);
  EXPECT_EQ(parameters.active, parameters.total - 26LL * (64 - 6) * 3 * 2048 * 1408);
}

// By hand: DeepSeek-V3's layer of multi-token prediction and its router.
TEST(Recipes, DeepSeekV3ByHand) {
  const ParameterPlan parameters = plan_of("models/deepseek_v3").parameters;
  const std::int64_t attention =
      7168 * 1536 + 1536 * 128 * 192 + 7168 * (512 + 64) + 512 * 128 * 256 + 128 * 128 * 7168;
  const std::int64_t latent_norms = 1536 + 512, expert = 3 * 7168 * 2048, router = 256 * 7168 + 256;
  EXPECT_EQ(total_of(parameters, "attention"), 61LL * attention);
  EXPECT_EQ(total_of(parameters, "router"), 58LL * router);
  EXPECT_EQ(total_of(parameters, "mtp"),
            attention + latent_norms + 257LL * expert + router + 2 * 7168 + 3 * 7168 + 2LL * 7168 * 7168);
}

// By hand: Mixtral 8x7B.
TEST(Recipes, MixtralByHand) {
  const ParameterPlan parameters = plan_of("models/mixtral_8x7b").parameters;
  EXPECT_EQ(total_of(parameters, "attention"), 32LL * (2 * 4096 * 4096 + 2 * 4096 * 1024));
  EXPECT_EQ(total_of(parameters, "experts"), 32LL * 8 * 3 * 4096 * 14336);
  EXPECT_EQ(total_of(parameters, "router"), 32 * 8 * 4096);
  EXPECT_EQ(total_of(parameters, "norms"), 65 * 4096);
  EXPECT_EQ(total_of(parameters, "mlp") + total_of(parameters, "shared_experts"), 0);
  EXPECT_EQ(parameters.active, parameters.total - 32LL * 6 * 3 * 4096 * 14336);
}

TEST(Recipes, CanAllBePlanned) {
  std::size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(recipes())) {
    const std::string stem = entry.path().stem().string();
    if (!entry.is_regular_file() || stem == "hf_pretrain" || stem.starts_with("pretrain_")) continue;
    if (entry.path().parent_path().filename() == "aliases") continue;
    SCOPED_TRACE(stem);
    const std::string name = fs::relative(entry.path(), recipes()).replace_extension("").string();
    const Plan plan = plan_of(name, {small_batch(name)});
    EXPECT_GT(plan.parameters.total, 0);
    EXPECT_GT(plan.memory.peak_bytes, 0);
    for (const MemoryPart& part : plan.memory.parts) EXPECT_GE(part.bytes, 0) << part.key;
    EXPECT_GE(plan.memory.worst_peak_bytes == 0 ? plan.memory.peak_bytes : plan.memory.worst_peak_bytes,
              plan.memory.peak_bytes);
    EXPECT_EQ(plan.pipeline.has_value(), plan.mesh.size(comm::MeshDim::kPipeline) > 1);
    EXPECT_GT(plan.checkpoint.tensor_bytes, 0);
    EXPECT_THAT(render(plan, false), HasSubstr("Parameters"));
    EXPECT_EQ(to_json(plan, false)["parameters"]["total"], plan.parameters.total);
    ++count;
  }
  EXPECT_GT(count, 50U);
}

// The reference run: experts over 2 of 8 ranks, everything else over 8.
TEST(Recipes, ReferenceRunOnItsRanks) {
  const Plan plan = plan_of("deepseek/deepseek_v2_lite_pretrain");
  EXPECT_EQ(plan.mesh.world_size(), 8);
  EXPECT_EQ(plan.mesh.size(comm::MeshDim::kExpertData), 4);
  const RankParameters& held = plan.parameters.ranks.front();
  EXPECT_EQ(held.experts.elements, 26LL * 32 * 3 * 2048 * 1408);
  const std::int64_t split = 2048 * 16 * 192 + 512 * 16 * 256 + 16 * 128 * 2048, whole = 2048 * 576;
  const std::int64_t layers =
      27 * (split / 8 + whole + 2 * 2048 + 512) + 3 * 2048 * 10944 / 8 + 26 * (2 * 3 * 2048 * 1408 / 8 + 64 * 2048);
  EXPECT_EQ(held.others.elements, layers + 2048 + 2 * 102400 / 8 * 2048);
  EXPECT_EQ(plan.evaluations.during_training, 5);
  EXPECT_EQ(plan.checkpoint.num_saves, 0);
  const Plan deep = plan_of("deepseek/deepseek_v2_lite_pretrain", {"moe_token_dispatcher_type=deepep"});
  EXPECT_EQ(deep.parameters.total, plan.parameters.total);
}

}  // namespace
}  // namespace pharos::plan

// Every shipped recipe resolves, and is valid on as many ranks as its name says.
#include <gmock/gmock.h>

#include <numeric>
#include <regex>

#include "pharos/config/derived.h"
#include "pharos/config/recipe/recipe.h"
#include "pharos/config/resolve.h"

namespace pharos::config {
namespace {

using testing::HasSubstr;

/// "…_16gpu_…", or the fewest ranks that its parallel sizes allow.
std::int64_t world_size_of(const std::string& recipe) {
  std::smatch found;
  if (std::regex_search(recipe, found, std::regex("_([0-9]+)gpu_"))) return std::stoll(found[1]);
  const ModelConfig model = resolve({.recipe = recipe}).config.model;
  return std::lcm(model_parallel_size(model), expert_tensor_parallel_size_or_default(model) *
                                                  model.expert_model_parallel_size *
                                                  model.pipeline_model_parallel_size);
}

ResolvedConfig read(const std::string& recipe, std::vector<std::string> overrides = {},
                    Purpose purpose = Purpose::kPlan) {
  return prepare({.recipe = recipe, .overrides = std::move(overrides)}, world_size_of(recipe), purpose);
}

TEST(Recipes, AreAllValid) {
  std::size_t count = 0;
  for (const auto& [name, path] : list_recipes()) {
    if (name == "hf_pretrain" || name.starts_with("pretrain_")) continue;  // incomplete without a folder or a model
    SCOPED_TRACE(name);
    try {
      const ResolvedConfig resolved = read(name);
      EXPECT_TRUE(resolved.config.model.num_layers.has_value());
      ++count;
    } catch (const ConfigErrors& errors) {
      ADD_FAILURE() << errors.what();
    }
  }
  EXPECT_GT(count, 70U);
}

// The values of the reference run.
TEST(Recipes, DeepSeekV2LiteReference) {
  const RunConfig config = read("deepseek_v2_lite_pretrain").config;
  EXPECT_EQ(config.model.tensor_model_parallel_size, 8);
  EXPECT_EQ(config.model.pipeline_model_parallel_size, 1);
  EXPECT_EQ(config.model.expert_model_parallel_size, 2);
  EXPECT_TRUE(config.model.sequence_parallel);
  EXPECT_FALSE(config.model.moe_permute_fusion);
  EXPECT_EQ(config.model.seq_length, 4096);
  EXPECT_EQ(config.train.train_iters, 500);
  EXPECT_EQ(config.train.global_batch_size, 64);
  EXPECT_EQ(config.train.micro_batch_size, 1);
  EXPECT_EQ(config.validation.eval_interval, 100);
  EXPECT_EQ(config.scheduler.lr_warmup_iters, 50);
  EXPECT_EQ(config.checkpoint.save_interval, 0);
  EXPECT_EQ(config.model.moe_token_dispatcher_type, TokenDispatcher::kAllToAll);
  EXPECT_TRUE(config.model.moe_shared_expert_overlap);

  for (const char* dispatcher : {"flex", "allgather"}) {
    const std::string override = std::string("moe_token_dispatcher_type=") + dispatcher;
    const RunConfig trained = read("deepseek_v2_lite_pretrain", {override, "device=cpu"}, Purpose::kTrain).config;
    EXPECT_EQ(trained.model.moe_shared_expert_overlap, dispatcher == std::string("flex"));
  }
  try {
    read("deepseek_v2_lite_pretrain", {"moe_token_dispatcher_type=ring"});
    FAIL() << "there is no such choice";
  } catch (const ConfigErrors& errors) {
    EXPECT_THAT(errors.what(), HasSubstr("Use alltoall, allgather, flex, deepep"));
  }

  const RunConfig deep = read("deepseek_v2_lite_pretrain", {"moe_token_dispatcher_type=deepep"}).config;
  EXPECT_EQ(deep.model.moe_token_dispatcher_type, TokenDispatcher::kFlex);
  EXPECT_EQ(deep.model.moe_flex_dispatcher_backend, FlexBackend::kDeepEp);
  EXPECT_EQ(deep.stored.at("model.moe_enable_deepep"), "true");
  EXPECT_FALSE(deep.model.moe_shared_expert_overlap);
  try {
    read("deepseek_v2_lite_pretrain", {"moe_token_dispatcher_type=deepep"}, Purpose::kTrain);
    FAIL() << "this build has no DeepEP";
  } catch (const ConfigErrors& errors) {
    EXPECT_THAT(errors.what(), HasSubstr("model.moe_flex_dispatcher_backend=native"));
  }
}

// The tiny model divides over TP 2, EP 2 and PP 2, and trains.
TEST(Recipes, DeepSeekV2LiteTinyDividesByTwo) {
  const std::vector<std::string> parts[] = {
      {"model.tensor_model_parallel_size=2", "model.sequence_parallel=true"},
      {"model.expert_model_parallel_size=2"},
      {"model.pipeline_model_parallel_size=2"},
      {"model.context_parallel_size=2"},
      {"model.tensor_model_parallel_size=2", "model.sequence_parallel=true", "model.expert_model_parallel_size=2"},
      {"model.tensor_model_parallel_size=2", "model.sequence_parallel=true", "model.expert_tensor_parallel_size=2"},
      {"model.expert_model_parallel_size=2", "model.q_lora_rank=24", "model.mtp_num_layers=1"}};
  for (const auto& overrides : parts) {
    EXPECT_NO_THROW(prepare({.recipe = "deepseek_v2_lite_tiny", .overrides = overrides}, 2, Purpose::kTrain))
        << testing::PrintToString(overrides);
  }
}

// A folder decides the geometry and the vocabulary; without one the model's own vocabulary is kept.
TEST(Recipes, TakeWeightsFromAFolder) {
  const RunConfig plain = resolve({.recipe = "qwen3_600m_pretrain"}).config;
  EXPECT_EQ(plain.tokenizer.tokenizer_type, TokenizerType::kNull);
  EXPECT_EQ(plain.tokenizer.vocab_size, 151936);
  const RunConfig folder = resolve({.recipe = "qwen3_600m_pretrain", .overrides = {"hf_path=models/x"}}).config;
  EXPECT_EQ(folder.model.hf_path, "models/x");
  EXPECT_FALSE(folder.model.num_layers.has_value());
  EXPECT_EQ(folder.tokenizer.tokenizer_type, TokenizerType::kNull);
  EXPECT_FALSE(folder.tokenizer.vocab_size.has_value());
}

TEST(Recipes, WhatIsNoFileIsNamedForWhatItIs) {
  for (const auto& [path, part] : {std::pair{"./", "'./' is a folder, not a recipe file"},
                                   {"/dev/null", "'/dev/null' is a pipe, a socket or a device, not a recipe file"},
                                   {"/nowhere/at.yaml", "There is no recipe file /nowhere/at.yaml."}}) {
    try {
      find_recipe(path);
      ADD_FAILURE() << path;
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

TEST(Recipes, AreFoundByNamesOfMegatronBridge) {
  EXPECT_EQ(find_recipe("llama3_8b_pretrain_config"), find_recipe("llama3_8b_pretrain"));
  EXPECT_EQ(recipe_group(find_recipe("llama3_8b_pretrain_2gpu_h100_bf16")), "llama");
  EXPECT_EQ(recipe_group(find_recipe("quickstart")), "");
  EXPECT_THROW(find_recipe("llama3_8b_pretrain_cfg"), base::UserError);
}

}  // namespace
}  // namespace pharos::config

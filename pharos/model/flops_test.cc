#include "pharos/model/flops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "pharos/base/json.h"
#include "pharos/config/derived.h"
#include "pharos/model/theoretical_memory.h"

namespace pharos::model {
namespace {

using config::ModelConfig;
using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAreArray;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kRelative = 1e-12;

std::optional<std::int64_t> integer(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::int64_t>());
}

/// Megatron's argument names to ours.
ModelConfig model_of(const json& args) {
  ModelConfig model;
  model.num_layers = integer(args["num_layers"]);
  model.hidden_size = integer(args["hidden_size"]);
  model.ffn_hidden_size = integer(args["ffn_hidden_size"]);
  model.num_attention_heads = integer(args["num_attention_heads"]);
  model.kv_channels = integer(args["kv_channels"]);
  if (args["group_query_attention"].get<bool>()) model.num_query_groups = integer(args["num_query_groups"]);
  model.seq_length = args["seq_length"];
  model.vocab_size = integer(args["padded_vocab_size"]);
  model.gated_linear_unit = args["swiglu"];
  model.normalization =
      args["normalization"] == "RMSNorm" ? config::Normalization::kRmsNorm : config::Normalization::kLayerNorm;
  model.share_embeddings_and_output_weights = !args["untie_embeddings_and_output_weights"].get<bool>();
  model.mtp_num_layers = integer(args["mtp_num_layers"]);
  model.multi_latent_attention = args["multi_latent_attention"];
  model.q_lora_rank = integer(args["q_lora_rank"]);
  model.kv_lora_rank = args["kv_lora_rank"];
  model.qk_head_dim = args["qk_head_dim"];
  model.qk_pos_emb_head_dim = args["qk_pos_emb_head_dim"];
  model.v_head_dim = args["v_head_dim"];
  model.num_moe_experts = integer(args["num_experts"]);
  model.moe_ffn_hidden_size = integer(args["moe_ffn_hidden_size"]);
  model.moe_router_topk = args["moe_router_topk"];
  model.moe_shared_expert_intermediate_size = integer(args["moe_shared_expert_intermediate_size"]);
  model.moe_shared_expert_gate = args["moe_shared_expert_gate"];
  const json& frequency = args["moe_layer_freq"];
  if (frequency.is_array()) {
    model.moe_layer_freq = frequency.get<std::vector<std::int64_t>>();
  } else {
    model.moe_layer_freq = frequency.get<std::int64_t>();
  }
  model.tensor_model_parallel_size = args["tensor_model_parallel_size"];
  model.pipeline_model_parallel_size = args["pipeline_model_parallel_size"];
  model.virtual_pipeline_model_parallel_size = integer(args["virtual_pipeline_model_parallel_size"]);
  model.context_parallel_size = args["context_parallel_size"];
  model.expert_model_parallel_size = args["expert_model_parallel_size"];
  model.expert_tensor_parallel_size = integer(args["expert_tensor_parallel_size"]);
  model.sequence_parallel = args["sequence_parallel"];
  return model;
}

EstimateSetup setup_of(const json& one, const ModelConfig& model) {
  const json& args = one["args"];
  const std::int64_t world = args["world_size"];
  return {.data_parallel_size = args["data_parallel_size"],
          .expert_data_parallel_size = world / (config::expert_tensor_parallel_size_or_default(model) *
                                                model.expert_model_parallel_size * model.pipeline_model_parallel_size),
          .micro_batch_size = args["micro_batch_size"],
          .num_microbatches = one["num_microbatches"],
          .distributed_optimizer = args["use_distributed_optimizer"]};
}

json cases() {
  return base::read_json_file(std::filesystem::path(PHAROS_TEST_DATA) / "megatron" / "flops_memory.json")["cases"];
}

void expect_equal(double value, const json& expected, const std::string& what) {
  EXPECT_NEAR(value / expected.get<double>(), 1, kRelative) << what;
}

TEST(Flops, AreMegatrons) {
  for (const json& one : cases()) {
    const ModelConfig model = model_of(one["args"]);
    const std::int64_t batch = one["global_batch_size"];
    expect_equal(training_flops(model, batch), one["flops"], one["name"]);
  }
}

ModelConfig small_model() {
  ModelConfig model;
  model.num_layers = 3;
  model.hidden_size = 64;
  model.num_attention_heads = 4;
  model.ffn_hidden_size = 96;
  model.vocab_size = 100;
  model.seq_length = 32;
  return model;
}

// The attention core is the only part that depends on how tokens are divided into sequences: 6 d n L Q2.
TEST(Flops, OfPackedSequences) {
  const ModelConfig model = small_model();
  const double packed = training_flops(model, {.tokens = 32, .squares = 20 * 20 + 12 * 12});
  const double whole = training_flops(model, SequenceSums::unpacked(1, 32));
  EXPECT_DOUBLE_EQ(whole, training_flops(model, 1));
  EXPECT_NEAR(whole - packed, 6.0 * 16 * 4 * 3 * (32 * 32 - 20 * 20 - 12 * 12), 1e-6 * whole);
  EXPECT_EQ(training_flops(model, SequenceSums{}), 0);
}

// Twice the core of the causal count, and the same besides.
TEST(Flops, OfFullAttention) {
  ModelConfig model = small_model();
  const double core = 6.0 * 64 * 3 * 32 * 32;
  EXPECT_NEAR(full_attention_training_flops(model, 1) - training_flops(model, 1), core, 1e-9 * core);
  const double full = full_attention_training_flops(model, 1);
  model.window_size = {3, 0};
  EXPECT_DOUBLE_EQ(full_attention_training_flops(model, 1), full);
}

// Multiply-adds of the core: both matrix products over the pairs (token, attended token), counted one by one. Megatron
// leaves out half of the diagonal of a causal layer, and counts a window exactly.
TEST(Flops, OfSlidingWindows) {
  ModelConfig model = small_model();
  const double causal = training_flops(model, 1);
  model.window_size = {7, 0};
  double pairs = 0;
  for (int token = 1; token <= 32; ++token) pairs += std::min(token, 8);
  EXPECT_NEAR(causal - training_flops(model, 1), 6.0 * 2 * 64 * 3 * (32 * 32 / 2.0 - pairs), 1e-9 * causal);
  model.window_attn_skip_freq = std::int64_t{2};  // layer 2 of 3 is full
  const double two_of_three = causal - training_flops(model, 1);
  EXPECT_NEAR(two_of_three, 6.0 * 2 * 64 * 2 * (32 * 32 / 2.0 - pairs), 1e-9 * causal);
  model.window_attn_skip_freq = std::vector<std::int64_t>{1, 0, 1};
  EXPECT_NEAR(causal - training_flops(model, 1), two_of_three, 1e-9 * causal);
  model.window_size = {100, 0};  // wider than the sequence
  EXPECT_DOUBLE_EQ(training_flops(model, 1), causal);
}

// MTP layers are counted like the last layer, with 3 h + 2 h^2 and another set of logits each.
TEST(Flops, OfMultiTokenPrediction) {
  ModelConfig model = small_model();
  model.num_moe_experts = 8;
  model.moe_layer_freq = std::vector<std::int64_t>{0, 0, 1};
  model.moe_ffn_hidden_size = 48;
  const double without = training_flops(model, 1);
  model.mtp_num_layers = 2;
  const double moe_layer = 64 * (4 * 64) + 2 * 64 * 32 / 2.0 + 64 * 48 * 2 * 2;
  const double extra = 6.0 * 32 * 2 * (moe_layer + 3 * 64 + 2 * 64 * 64 + 64 * 100);
  EXPECT_NEAR(training_flops(model, 1) - without, extra, 1e-9 * extra);
}

TEST(Flops, CountThePaddedVocabulary) {
  ModelConfig model = small_model();
  const double exact = training_flops(model, 1);
  model.should_pad_vocab = true;
  EXPECT_NEAR(training_flops(model, 1) - exact, 6.0 * 32 * 64 * 28, 1e-9 * exact);
}

TEST(TheoreticalMemory, IsMegatrons) {
  for (const json& one : cases()) {
    const std::string name = one["name"];
    const ModelConfig model = model_of(one["args"]);
    const EstimateSetup setup = setup_of(one, model);
    const ParameterEstimate parameters = estimate_parameters(model);
    expect_equal(estimate_weight_and_optimizer_bytes(parameters, setup), one["weight_and_optimizer_bytes"], name);
    expect_equal(estimate_activations_with_sequence_parallel(model, setup).total_bytes,
                 one["activation_bytes_with_sequence_parallel"], name);
    expect_equal(estimate_activations_without_sequence_parallel(model, setup).total_bytes,
                 one["activation_bytes_without_sequence_parallel"], name);
    EXPECT_THAT(render_parameter_lines(model, parameters),
                ElementsAreArray(one["printed"].get<std::vector<std::string>>()))
        << name;
  }
}

TEST(TheoreticalMemory, PartsAddUpToTheTotal) {
  for (const json& one : cases()) {
    const ParameterEstimate p = estimate_parameters(model_of(one["args"]));
    EXPECT_NEAR((p.attention + p.mlp + p.experts + p.router + p.norms + p.mtp + p.embedding + p.output) / p.total, 1,
                kRelative);
  }
}

TEST(TheoreticalMemory, TakesTheFormMegatronTakes) {
  ModelConfig model = small_model();
  model.tensor_model_parallel_size = 2;
  const EstimateSetup setup{.micro_batch_size = 2};
  EXPECT_THAT(render_memory_lines(model, estimate_memory(model, setup)),
              Contains(StartsWith("Activation memory footprint per transformer layer (precise, without SP): ")));
  model.sequence_parallel = true;
  model.recompute_granularity = config::RecomputeGranularity::kSelective;
  const MemoryEstimate memory = estimate_memory(model, setup);
  EXPECT_DOUBLE_EQ(memory.activations.total_bytes,
                   estimate_activations_with_sequence_parallel(model, setup).total_bytes);
  EXPECT_THAT(render_memory_lines(model, memory),
              Contains(StartsWith("Activation memory footprint per transformer layer: ")));
}

// 4 stages of 2 chunks: 1 + 3/8 of the activations, ceil(4 * 11/8) = 6 microbatches. Without chunks as many as there
// are.
TEST(TheoreticalMemory, CountsMicrobatchesInFlight) {
  ModelConfig model = small_model();
  model.num_layers = 8;
  model.pipeline_model_parallel_size = 4;
  const EstimateSetup setup{.num_microbatches = 3};
  EXPECT_THAT(render_memory_lines(model, estimate_memory(model, setup)),
              Contains("Number of in-flight microbatches: 3"));
  model.virtual_pipeline_model_parallel_size = 2;
  const auto lines = render_memory_lines(model, estimate_memory(model, setup));
  EXPECT_THAT(lines, Contains("Memory penalty from interleaved schedule: 1.38"));
  EXPECT_THAT(lines, Contains("Number of in-flight microbatches: 6"));
  EXPECT_THAT(lines, Contains(StartsWith("Number of parameters in other shards in billions: ")));
  model.virtual_pipeline_model_parallel_size = std::nullopt;
  model.pipeline_model_parallel_size = 1;
  EXPECT_THAT(render_memory_lines(model, estimate_memory(model, setup)), Not(Contains(StartsWith("Number of in-"))));
}

}  // namespace
}  // namespace pharos::model

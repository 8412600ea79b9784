// Plans of experts, latent attention and multi-token prediction, by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "pharos/model/transformer.h"
#include "pharos/plan/plan_testing.h"

namespace pharos::plan {
namespace {

const std::vector<std::string> kExperts = {"model.num_moe_experts=8", "model.moe_ffn_hidden_size=256",
                                           "model.moe_shared_expert_intermediate_size=128"};

std::vector<std::string> with_experts(std::vector<std::string> more) {
  more.insert(more.end(), kExperts.begin(), kExperts.end());
  return more;
}

// Of 8 experts a token passes through 2. Two of four ranks hold the same experts, all four the same of everything else.
TEST(ExpertParameters, OfExperts) {
  const Plan plan = plan_of(with_experts({"model.expert_model_parallel_size=2", "train.global_batch_size=32"}), 4);
  constexpr std::int64_t kExpert = 3 * 512 * 256;
  EXPECT_EQ(total_of(plan, "experts"), 6 * 8 * kExpert);
  EXPECT_EQ(total_of(plan, "shared_experts"), 6 * 3 * 512 * 128);
  EXPECT_EQ(total_of(plan, "router"), 6 * 8 * 512);
  EXPECT_EQ(total_of(plan, "mlp"), 0);
  EXPECT_EQ(plan.parameters.active, plan.parameters.total - 6 * 6 * kExpert);
  const std::int64_t sum = std::accumulate(plan.parameters.components.begin(), plan.parameters.components.end(),
                                           std::int64_t{0}, [](auto s, const auto& one) { return s + one.total; });
  EXPECT_EQ(sum, plan.parameters.total);
  const RankParameters& held = plan.parameters.ranks.front();
  EXPECT_EQ(held.experts.elements, 6 * 4 * kExpert);
  EXPECT_EQ(held.others.elements, plan.parameters.total - 6 * 8 * kExpert);
  EXPECT_EQ(plan.mesh.size(comm::MeshDim::kExpertData), 2);
}

// An expert is halved along its width by ETP 2 and along the number of experts by EP 2; 2 ranks have the same ones.
TEST(ExpertParameters, OfExpertTensorParallelRanks) {
  const Plan plan = plan_of(with_experts({"model.expert_model_parallel_size=2", "model.expert_tensor_parallel_size=2",
                                          "train.global_batch_size=64"}),
                            8);
  EXPECT_EQ(plan.parameters.ranks.front().experts.elements, 6 * 4 * 3 * 512 * 128);
  EXPECT_EQ(plan.mesh.size(comm::MeshDim::kExpertData), 2);
}

// A bias on scores is a weight in fp32 without gradient and moments.
TEST(ExpertParameters, ExpertBiasIsNotTrained) {
  const Plan plan =
      plan_of(with_experts({"model.moe_router_score_function=sigmoid", "model.moe_router_enable_expert_bias=true",
                            "model.bf16=true", "optimizer.bf16=true"}));
  const RankParameters& held = plan.parameters.ranks.front();
  EXPECT_EQ(held.fixed_elements, 6 * 8);
  EXPECT_EQ(held.float_elements, 6 * 8);
  EXPECT_EQ(held.buffer_elements(), plan.parameters.total - 6 * 8);
  EXPECT_DOUBLE_EQ(plan.memory.part("weights"), 2.0 * static_cast<double>(plan.parameters.total) + 2 * 6 * 8);
}

// Frozen weights have neither gradients nor moments, and are in a checkpoint without them.
TEST(ExpertParameters, FrozenOnesAreNotTrained) {
  const Plan plan = plan_of(with_experts({"optimizer.freeze=['*.mlp.experts.*']"})), all = plan_of(with_experts({}));
  constexpr std::int64_t kFrozen = 6 * 8 * 3 * 512 * 256;
  EXPECT_EQ(plan.parameters.ranks.front().experts.elements, 0);
  EXPECT_EQ(plan.parameters.ranks.front().fixed_elements, kFrozen);
  EXPECT_DOUBLE_EQ(plan.memory.part("gradients"), all.memory.part("gradients") - 4.0 * kFrozen);
  EXPECT_DOUBLE_EQ(plan.memory.part("weights"), all.memory.part("weights"));
  EXPECT_DOUBLE_EQ(plan.checkpoint.tensor_bytes, all.checkpoint.tensor_bytes - 8.0 * kFrozen);
}

// Multi-token prediction reads the embedding, which the last stage holds once more, and has a layer like the last one.
TEST(ExpertParameters, OfMultiTokenPrediction) {
  constexpr std::int64_t kLayer = 4 * 512 * 512 + 3 * 512 * 1376 + 2 * 512, kWords = 8192 * 512;
  const Plan whole = plan_of({"model.mtp_num_layers=2"});
  EXPECT_EQ(total_of(whole, "mtp"), 2 * (kLayer + 2 * 512 * 512 + 3 * 512));
  EXPECT_EQ(whole.parameters.ranks.front().elements, whole.parameters.total);
  const Plan stages = plan_of({"model.mtp_num_layers=2", "model.pipeline_model_parallel_size=2"}, 2);
  EXPECT_EQ(stages.parameters.total, whole.parameters.total);
  EXPECT_EQ(stages.parameters.ranks[0].elements + stages.parameters.ranks[1].elements, whole.parameters.total + kWords);
  EXPECT_EQ(stages.chunks.back().num_prediction_layers, 2);
  EXPECT_GT(stages.pipeline->costs.costs.forward[1], stages.pipeline->costs.costs.forward[0]);
  EXPECT_GT(stages.memory.peak_bytes_of_ranks[1], stages.memory.peak_bytes_of_ranks[0]);
}

// All parameters of every kind of layer, on two stages: the sum over both is that of the model.
TEST(ExpertParameters, OfDeepSeekAreThoseOfTheModel) {
  const config::ResolvedConfig resolved = read(
      {"model.q_lora_rank=24", "model.vocab_size=256", "model.mtp_num_layers=1"}, 1, "deepseek/deepseek_v2_lite_tiny");
  const config::ModelConfig& model = resolved.config.model;
  model::Transformer transformer(model, model::whole_model(model), comm::Mesh(1, {}), 0);
  std::int64_t expected = 0;
  for (const auto* parameter : transformer.parameters()) expected += tensor::num_elements(*parameter);
  EXPECT_EQ(make_plan(resolved, 1).parameters.total, expected);
}

// By hand, fp32, 2048 tokens, 2 of 8 experts of width 256 and a shared one of width 128. In the place of the dense
// MLP's 3 x 1376 a layer keeps for each of 2 rows a token the row (512), 3 x 256 elements, a probability and two
// indices; of routing the scores of 8 experts, and two indices and a probability a choice; of the shared expert 3 x
// 128.
TEST(ExpertMemory, ActivationsOfExpertsByHand) {
  const double dense = 10 * 512 + 2 + 8, tokens = 2048;
  const double experts = 2 * (4 * (512 + 3 * 256) + 4 + 2 * 8) + 4 * 8 + 2 * (2 * 8 + 4) + 4 * 3 * 128;
  const Plan plan = plan_of(with_experts({"model.moe_router_pre_softmax=true"}));
  EXPECT_EQ(plan.memory.phase, "loss");
  EXPECT_DOUBLE_EQ(plan.memory.part("activations"), 6 * tokens * (4 * dense + experts) + tokens * 4 * (2 * 512 + 1));
  EXPECT_DOUBLE_EQ(plan.memory.worst_peak_bytes, plan.memory.peak_bytes);  // one rank has all experts
}

// On one of two ranks with half of the experts each: as many rows, or all 2 x 2048 tokens twice.
TEST(ExpertMemory, WorstRoutingOfExpertParallelRanks) {
  const Plan plan = plan_of(with_experts({"model.expert_model_parallel_size=2", "train.global_batch_size=16",
                                          "model.moe_token_dispatcher_type=alltoall"}),
                            2);
  EXPECT_GT(plan.memory.worst_peak_bytes, plan.memory.peak_bytes + 6.0 * 2 * 2048 * 4 * (512 + 3 * 256));
  const Plan padded =
      plan_of(with_experts({"model.expert_model_parallel_size=2", "train.global_batch_size=16",
                            "model.moe_token_dispatcher_type=alltoall", "model.moe_expert_capacity_factor=1",
                            "model.moe_pad_expert_input_to_capacity=true"}),
              2);
  EXPECT_DOUBLE_EQ(padded.memory.worst_peak_bytes, padded.memory.peak_bytes);  // every expert gets its capacity
  // However large the factor, an expert takes each token at most once.
  const auto padded_by = [](const std::string& factor) {
    return plan_of(with_experts(
                       {"model.moe_expert_capacity_factor=" + factor, "model.moe_pad_expert_input_to_capacity=true"}),
                   1)
        .memory.peak_bytes;
  };
  EXPECT_DOUBLE_EQ(padded_by("1e300"), padded_by("1e3"));
}

// Moments of experts are divided over the 2 ranks that hold the same ones, all others over 4.
TEST(ExpertMemory, OptimizerStatesOfExpertsAreDividedOverTheirCopies) {
  const Plan plan =
      plan_of(with_experts({"model.expert_model_parallel_size=2", "train.global_batch_size=32",
                            "ddp.use_distributed_optimizer=true", "optimizer.use_distributed_optimizer=true"}),
              4);
  const RankParameters& held = plan.parameters.ranks.front();
  const double state = static_cast<double>(held.experts.elements) / 2 + static_cast<double>(held.others.elements) / 4;
  EXPECT_DOUBLE_EQ(plan.memory.part("optimizer"), 8 * state);
  EXPECT_DOUBLE_EQ(plan.memory.part("gradients"), 4.0 * static_cast<double>(held.buffer_elements()));
}

// Queries and keys of 8 heads are 48 wide, values and results 32; with a window ATen's kernel for CPUs takes values and
// gives results as wide as keys. Latents of 64 elements are kept before and after their norm.
TEST(ExpertMemory, ActivationsOfLatentAttentionByHand) {
  const std::vector<std::string> latent{
      "model.multi_latent_attention=true", "model.q_lora_rank=null", "model.kv_lora_rank=64",  "model.qk_head_dim=32",
      "model.qk_pos_emb_head_dim=16",      "model.v_head_dim=32",    "model.qk_layernorm=true"};
  const double mlp = 2 * 512 + 1 + 3 * 1376, attention = 512 + 1 + 512 + 2 * 64 + 1 + 2 * 8 * 48 + 2 * 8 * 32 + 8;
  const Plan plan = plan_of(latent);
  EXPECT_EQ(plan.memory.phase, "loss");
  EXPECT_DOUBLE_EQ(plan.memory.part("activations"), 2048.0 * 4 * (6 * (attention + mlp) + 2 * 512 + 1));
  std::vector<std::string> windowed = latent;
  windowed.push_back("model.window_size=[127,0]");
  const double padded = 512 + 1 + 512 + 2 * 64 + 1 + 4 * 8 * 48 + 8 * 32 + 8;
  EXPECT_DOUBLE_EQ(plan_of(windowed).memory.part("activations"), 2048.0 * 4 * (6 * (padded + mlp) + 2 * 512 + 1));
  std::vector<std::string> formed_again = latent;
  formed_again.insert(formed_again.end(),
                      {"model.recompute_granularity=selective", "model.recompute_modules=[mla_up_proj]"});
  const double less = 512 + 1 + 512 + 2 * 64 + 1 + 16 + 8 * 32;
  EXPECT_DOUBLE_EQ(plan_of(formed_again).memory.part("activations"), 2048.0 * 4 * (6 * (less + mlp) + 2 * 512 + 1));
}

// 2 ranks, one microbatch of 2048 tokens, 6 layers, 2 choices a token in fp32. There and back, forward and backward,
// 2 x 512 elements a token, and twice 2 probabilities; half of it stays.
TEST(ExpertCommunication, OfExpertParallelByHand) {
  const auto plan_with = [](const std::string& dispatcher, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"model.expert_model_parallel_size=2", "train.global_batch_size=16",
                             "model.moe_token_dispatcher_type=" + dispatcher});
    return plan_of(with_experts(std::move(more)), 2);
  };
  const double rows = 2048 * 2 * 512 * 4, probabilities = 2048 * 2 * 4, choices = 2048 * 2 * 8;
  const Plan sent = plan_with("alltoall");
  EXPECT_DOUBLE_EQ(bytes_of(sent, "tokens to experts", "all_to_all"), 6 * (2 * rows + probabilities) / 2);
  EXPECT_DOUBLE_EQ(bytes_of(sent, "tokens from experts", "all_to_all"), 6 * (2 * rows + probabilities) / 2);
  const Plan again = plan_with("alltoall", {"model.recompute_granularity=full", "model.recompute_method=uniform",
                                            "model.recompute_num_layers=1"});
  EXPECT_DOUBLE_EQ(bytes_of(again, "tokens to experts", "all_to_all"), 6 * (3 * rows + 2 * probabilities) / 2);
  // Both ranks' tokens, once each.
  const Plan gathered = plan_with("allgather");
  EXPECT_DOUBLE_EQ(bytes_of(gathered, "tokens to experts", "all_gather"),
                   6 * (2 * rows + 2 * probabilities + 2 * choices) / 2);
  EXPECT_DOUBLE_EQ(bytes_of(gathered, "tokens from experts", "reduce_scatter"), 6 * (2 * rows + 2 * probabilities) / 2);
  // A token is on 2 (1 - C(4, 2) / C(8, 2)) = 11/7 of the ranks.
  const Plan flex = plan_with("flex", {"model.moe_flex_dispatcher_backend=native"});
  EXPECT_NEAR(bytes_of(flex, "tokens from experts", "all_to_all"), 6 * 11.0 / 7 * (rows + probabilities) / 2, 1);
  EXPECT_EQ(bytes_of(sent, "gradients of experts", "all_reduce"), 0);  // no rank has a copy of another's experts
  EXPECT_GT(bytes_of(sent, "gradients", "all_reduce"), 0);
}

// 4 ranks hold the experts twice: their gradients are added up over 2 ranks, all others over 4.
TEST(ExpertCommunication, OfExpertDataParallelByHand) {
  const Plan plan = plan_of(with_experts({"model.expert_model_parallel_size=2", "train.global_batch_size=32",
                                          "ddp.grad_reduce_in_fp32=true"}),
                            4);
  const RankParameters& held = plan.parameters.ranks.front();
  EXPECT_DOUBLE_EQ(bytes_of(plan, "gradients of experts", "all_reduce"),
                   4.0 * static_cast<double>(held.experts.elements));
  EXPECT_DOUBLE_EQ(bytes_of(plan, "gradients", "all_reduce"), 6.0 * static_cast<double>(held.others.elements));
}

}  // namespace
}  // namespace pharos::plan

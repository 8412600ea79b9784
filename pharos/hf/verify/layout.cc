#include "pharos/hf/verify/layout.h"

#include <algorithm>
#include <numeric>

#include "pharos/config/derived.h"

namespace pharos::hf {
namespace {

/// Tensor-parallel ranks that all have the same tokens would send each of them to its experts.
bool splits_tokens(const config::ModelConfig& model, const VerifyLayout& layout) {
  return layout.tensor > 1 && (layout.sequence_parallel || model.num_moe_experts);
}

}  // namespace

comm::ParallelSizes VerifyLayout::sizes() const {
  return {.tensor = tensor, .pipeline = pipeline, .expert = expert, .expert_tensor = expert_tensor.value_or(1)};
}

std::int64_t VerifyLayout::world_size() const {
  if (data) return tensor * pipeline * *data;
  return std::lcm(tensor, sizes().expert_tensor * expert) * pipeline;
}

config::ModelConfig divide_model(config::ModelConfig model, const VerifyLayout& layout) {
  const comm::ParallelSizes sizes = layout.sizes();
  model.params_dtype = config::DType::kFloat32;
  model.bf16 = model.fp16 = false;
  model.tensor_model_parallel_size = sizes.tensor;
  model.pipeline_model_parallel_size = sizes.pipeline;
  model.expert_model_parallel_size = sizes.expert;
  model.expert_tensor_parallel_size = sizes.expert_tensor;
  model.sequence_parallel = splits_tokens(model, layout);
  if (sizes.expert > 1 || sizes.expert_tensor > 1) model.moe_token_dispatcher_type = config::TokenDispatcher::kAllToAll;
  if (sizes.pipeline > 1 && *model.num_layers % sizes.pipeline != 0)
    model.num_layers_in_first_pipeline_stage =
        *model.num_layers - (sizes.pipeline - 1) * (*model.num_layers / sizes.pipeline);
  model.should_pad_vocab = true;
  model.make_vocab_size_divisible_by = 1;
  return model;
}

std::vector<std::string> layout_problems(const config::ModelConfig& model, const VerifyLayout& layout,
                                         std::int64_t num_rows, std::int64_t num_tokens) {
  std::vector<std::string> problems;
  const comm::ParallelSizes sizes = layout.sizes();
  const auto divides = [&](const char* size_name, std::int64_t size, const char* what, std::int64_t count) {
    if (count % size != 0)
      problems.push_back(std::string(what) + " = " + std::to_string(count) + " is not divisible by " + size_name +
                         " = " + std::to_string(size));
  };
  divides("--tensor-parallel", sizes.tensor, "the number of heads", *model.num_attention_heads);
  if (const std::int64_t groups = config::num_query_groups_or_default(model);
      !model.multi_latent_attention && sizes.tensor % groups != 0)
    divides("--tensor-parallel", sizes.tensor, "the number of key-value heads", groups);
  divides("--tensor-parallel", sizes.tensor, "the width of the MLP", config::ffn_hidden_size_or_default(model));
  if (splits_tokens(model, layout)) divides("--tensor-parallel", sizes.tensor, "the number of tokens", num_tokens);
  if (*model.num_layers < sizes.pipeline)
    problems.push_back("the number of layers = " + std::to_string(*model.num_layers) +
                       " is below --pipeline-parallel = " + std::to_string(sizes.pipeline));
  if (!model.num_moe_experts && (sizes.expert > 1 || layout.expert_tensor))
    problems.emplace_back("the model has no experts to be divided by --expert-parallel or --expert-tensor-parallel");
  if (model.num_moe_experts) {
    divides("--expert-parallel", sizes.expert, "the number of experts", *model.num_moe_experts);
    divides("--expert-tensor-parallel", sizes.expert_tensor, "the width of an expert",
            config::moe_ffn_hidden_size_or_default(model));
    if (sizes.expert_tensor > 1 && model.add_mlp_bias.value_or(model.add_bias_linear))
      problems.emplace_back("experts with biases are not divided by --expert-tensor-parallel");
  }
  const std::int64_t world = layout.world_size(), dense = sizes.tensor * sizes.pipeline;
  if (world % (sizes.expert_tensor * sizes.expert * sizes.pipeline) != 0)
    problems.push_back("the " + std::to_string(world) + " ranks are not divisible by those that divide the experts (" +
                       std::to_string(sizes.expert_tensor * sizes.expert * sizes.pipeline) + ")");
  divides("the data-parallel ranks", world / dense, "the number of rows of a batch", num_rows);
  return problems;
}

}  // namespace pharos::hf

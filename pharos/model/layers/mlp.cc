// Declarations of dense and of mixture-of-experts MLPs (bridge-config.md 1.7, 8).
#include <algorithm>

#include "pharos/config/derived.h"
#include "pharos/model/layers/parts.h"

namespace pharos::model {
namespace {

using comm::MeshDim;
using config::ModelConfig;
using tensor::Init;
using tensor::Parameter;

bool has_mlp_bias(const ModelConfig& config) { return config.add_mlp_bias.value_or(config.add_bias_linear); }

/// One tensor a block for all experts, [experts, rows, columns] or, without columns, [experts, rows]. Side by side
/// along axis 1; divided over experts, and along `tensor_axis` (-1: not) over parts of experts.
Parameter declare_of_experts(const ModelConfig& config, const std::string& name, const char* kind,
                             const std::vector<Block>& blocks, std::int64_t columns, int tensor_axis, Init init) {
  Parameter parameter;
  parameter.name = name + "." + kind;
  parameter.axis = 1;
  parameter.weight_decay = columns > 0;
  for (const Block& block : blocks) {
    std::vector<std::int64_t> shape{*config.num_moe_experts, block.rows};
    if (columns > 0) shape.push_back(columns);
    std::vector<tensor::Split> splits{{0, MeshDim::kExpert}};
    if (tensor_axis >= 0) splits.push_back({tensor_axis, MeshDim::kExpertTensor});
    parameter.pieces.push_back({block.name + "." + kind, std::move(shape), std::move(splits), init});
  }
  return parameter;
}

nn::Experts declare_experts(const ModelConfig& config, const std::string& name) {
  const std::int64_t inner = config::moe_ffn_hidden_size_or_default(config), hidden = *config.hidden_size;
  const std::vector<Block> first = config.gated_linear_unit
                                       ? std::vector<Block>{{name + ".gate", inner}, {name + ".up", inner}}
                                       : std::vector<Block>{{name + ".linear_fc1", inner}};
  const std::vector<Block> second{{name + ".linear_fc2", hidden}};
  nn::Experts experts;
  experts.fc1 = declare_of_experts(config, name + ".linear_fc1", "weight", first, hidden, 1,
                                   Init::normal(config.init_method_std));
  experts.fc2 = declare_of_experts(config, name + ".linear_fc2", "weight", second, inner, 2,
                                   Init::normal(output_deviation(config)));
  if (has_mlp_bias(config)) {
    experts.fc1_bias = declare_of_experts(config, name + ".linear_fc1", "bias", first, 0, 1, Init::constant(0));
    experts.fc2_bias = declare_of_experts(config, name + ".linear_fc2", "bias", second, 0, -1, Init::constant(0));
  }
  experts.activation = config.activation_func;
  experts.gated = config.gated_linear_unit;
  experts.clamp = config.activation_func_clamp_value;
  experts.up_offset = config.glu_linear_offset;
  experts.recompute_activation = recomputes(config, "moe_act");
  return experts;
}

nn::RouterOptions router_options(const ModelConfig& config, const std::string& name) {
  nn::RouterOptions options;
  options.num_experts = *config.num_moe_experts;
  options.topk = config.moe_router_topk;
  options.score_function = config.moe_router_score_function;
  options.pre_softmax = config.moe_router_pre_softmax;
  options.norm_topk_prob = config.moe_router_norm_topk_prob;
  options.scaling_factor = config.moe_router_topk_scaling_factor;
  options.num_groups = config.moe_router_num_groups;
  options.group_topk = config.moe_router_group_topk;
  options.group_score = config.moe_router_group_score;
  if (config.moe_router_dtype)
    options.dtype = *config.moe_router_dtype == config::RouterDType::kFloat64 ? at::kDouble : at::kFloat;
  options.jitter = config.moe_input_jitter_eps;
  options.z_loss_coeff = config.moe_z_loss_coeff;
  for (std::size_t i = 0; i < config.moe_router_load_balancing_type.size(); ++i) {
    const std::string& type = config.moe_router_load_balancing_type[i];
    const auto& coefficients = config.moe_aux_loss_coeff;
    if (type != "none") options.balancing.push_back({type, coefficients[std::min(i, coefficients.size() - 1)]});
  }
  if (config.moe_expert_capacity_factor.value_or(-1) >= 0) options.capacity_factor = config.moe_expert_capacity_factor;
  options.drop_policy = config.moe_token_drop_policy;
  options.force_balance = config.moe_router_force_load_balancing;
  options.force_biased = config.moe_router_force_biased;
  options.calculates_per_token_loss = config.calculate_per_token_loss;
  options.name = name;
  return options;
}

nn::Router declare_router(const ModelConfig& config, const Placement& placement, const std::string& name) {
  nn::Linear linear = declare_whole_linear(name, *config.num_moe_experts, *config.hidden_size, has_mlp_bias(config),
                                           config.init_method_std, placement);
  nn::Router router;
  router.weight = std::move(linear.weight);
  router.bias = std::move(linear.bias);
  if (config.moe_router_enable_expert_bias) {
    router.expert_bias.emplace();
    router.expert_bias->name = name + ".expert_bias";
    router.expert_bias->pieces = {{router.expert_bias->name, {*config.num_moe_experts}, {}, Init::constant(0)}};
    router.expert_bias->weight_decay = router.expert_bias->trainable = false;
    router.expert_bias->dtype = at::kFloat;
  }
  router.options = router_options(config, name);
  router.parallel = placement.parallel;
  router.context_parallel = placement.context_parallel;
  router.tokens_group = placement.groups.tokens;
  router.balance_group = placement.groups.balance;
  return router;
}

}  // namespace

nn::Mlp declare_mlp(const ModelConfig& config, std::int64_t width, const Placement& placement,
                    const std::string& name) {
  const std::int64_t hidden = *config.hidden_size;
  const std::vector<Block> blocks = config.gated_linear_unit
                                        ? std::vector<Block>{{name + ".gate", width}, {name + ".up", width}}
                                        : std::vector<Block>{{name + ".linear_fc1", width}};
  nn::Mlp mlp;
  const bool bias = has_mlp_bias(config);
  mlp.fc1 =
      declare_column_linear(name + ".linear_fc1", blocks, hidden, bias, config.init_method_std, placement.parallel);
  mlp.fc2 = declare_row_linear(name + ".linear_fc2", hidden, width, bias, output_deviation(config), placement);
  mlp.activation = config.activation_func;
  mlp.gated = config.gated_linear_unit;
  mlp.clamp = config.activation_func_clamp_value;
  mlp.up_offset = config.glu_linear_offset;
  return mlp;
}

nn::Moe declare_moe(const ModelConfig& config, const Placement& placement, const std::string& name) {
  nn::Moe moe;
  moe.router = declare_router(config, placement, name + ".router");
  moe.experts = declare_experts(config, name + ".experts");
  if (config.moe_shared_expert_intermediate_size) {
    moe.shared_experts =
        declare_mlp(config, *config.moe_shared_expert_intermediate_size, placement, name + ".shared_experts");
    if (config.moe_shared_expert_gate)
      moe.shared_expert_gate = declare_whole_linear(name + ".shared_experts.gate_weight", 1, *config.hidden_size, false,
                                                    config.init_method_std, placement);
  }
  moe.overlaps_shared_experts = config.moe_shared_expert_overlap;
  moe.pads_to_capacity = config.moe_pad_expert_input_to_capacity;
  moe.recompute_shared_experts = recomputes(config, "shared_experts");
  moe.load = std::make_unique<nn::RouterLoad>();
  nn::DispatchOptions options{.num_experts = *config.num_moe_experts, .topk = config.moe_router_topk};
  moe.dispatcher =
      nn::make_dispatcher(config.moe_token_dispatcher_type, config.moe_flex_dispatcher_backend, options,
                          {placement.groups.expert, placement.groups.expert_tensor, placement.groups.expert_both});
  return moe;
}

}  // namespace pharos::model

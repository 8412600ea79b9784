#include "pharos/train/experts/router_watch.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "pharos/config/grammar/name_patterns.h"

namespace pharos::train {
namespace {

/// Megatron's name of a loss.
const char* loss_name(const std::string& type) {
  if (type == "aux_loss") return "load_balancing_loss";
  if (type == "seq_aux_loss") return "seq_load_balancing_loss";
  if (type == "global_aux_loss") return "global_load_balancing_loss";
  return nullptr;  // balanced without a loss
}

bool is_frozen(const config::OptimizerConfig& optimizer, const std::string& name) {
  if (!optimizer.freeze) return false;
  return std::any_of(optimizer.freeze->begin(), optimizer.freeze->end(),
                     [&](const std::string& pattern) { return config::matches_pattern(pattern, name); });
}

}  // namespace

RouterWatch::RouterWatch(const config::RunConfig& config, const std::vector<model::Transformer*>& chunks,
                         comm::Group* balance, comm::Group& pipeline, std::int64_t data_size, at::Device device)
    : balance_(balance), pipeline_(pipeline), device_(device) {
  const config::ModelConfig& model = config.model;
  if (!model.num_moe_experts) return;
  num_layers_ = *model.num_layers + model.mtp_num_layers.value_or(0);
  num_experts_ = *model.num_moe_experts;
  ranks_per_sample_ = balance == nullptr ? 1 : static_cast<double>(balance->size()) / static_cast<double>(data_size);
  bias_update_rate_ = model.moe_router_bias_update_rate;
  for (model::Transformer* chunk : chunks) {
    for (model::TransformerLayer* layer : chunk->moe_layers()) {
      layers_.push_back(layer);
      auto& bias = layer->moe()->router.expert_bias;
      biases_.push_back(bias && !is_frozen(config.optimizer, bias->pieces.front().name) ? &*bias : nullptr);
    }
  }
  const auto& coefficients = model.moe_aux_loss_coeff;
  for (std::size_t i = 0; i < model.moe_router_load_balancing_type.size(); ++i) {
    const std::string& type = model.moe_router_load_balancing_type[i];
    const double coefficient = coefficients[std::min(i, coefficients.size() - 1)];
    if (loss_name(type) != nullptr && coefficient != 0) losses_.push_back({type, loss_name(type), coefficient});
  }
  if (model.moe_z_loss_coeff.value_or(0) != 0) losses_.push_back({"z_loss", "z_loss", *model.moe_z_loss_coeff});
}

Routing RouterWatch::finish_step() {
  Routing routing;
  if (num_layers_ == 0) return routing;
  const at::NoGradGuard no_grad;
  const at::Tensor sums = sum_stage();
  move_biases(sums);
  const std::vector<double> table = sum_model(sums);
  for (std::int64_t layer = 0; layer < num_layers_; ++layer) {
    const double* columns = table.data() + layer * num_columns();
    if (columns[num_experts_ + 1] > 0) routing.layers.push_back(describe(layer + 1, columns));
  }
  for (const Loss& loss : losses_) routing.losses.emplace_back(loss.name, 0.0);
  for (const RoutedLayer& layer : routing.layers) {
    for (std::size_t i = 0; i < losses_.size(); ++i)
      routing.losses[i].second += layer.losses[i].second / static_cast<double>(routing.layers.size());
  }
  return routing;
}

at::Tensor RouterWatch::sum_stage() {
  if (layers_.empty()) return {};
  const auto options = at::TensorOptions().dtype(at::kDouble).device(device_);
  at::Tensor sums = at::zeros({static_cast<std::int64_t>(layers_.size()), num_columns()}, options);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    nn::RouterLoad& load = *layers_[i]->moe()->load;
    const at::Tensor row = sums[static_cast<std::int64_t>(i)];
    if (load.tokens_per_expert.defined()) row.narrow(0, 0, num_experts_).copy_(load.tokens_per_expert);
    if (load.dropped.defined()) row[num_experts_].copy_(load.dropped);
    row[num_experts_ + 1].fill_(static_cast<double>(load.num_microbatches));
    for (std::size_t k = 0; k < losses_.size(); ++k) {
      const auto loss = load.losses.find(losses_[k].type);
      if (loss != load.losses.end()) row[num_experts_ + 2 + static_cast<std::int64_t>(k)].copy_(loss->second);
    }
    load = {};
  }
  if (balance_ != nullptr) balance_->all_reduce(sums, comm::ReduceOp::kSum, {"loads of experts"}).wait();
  return sums;
}

void RouterWatch::move_biases(const at::Tensor& sums) {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (biases_[i] == nullptr) continue;
    nn::update_expert_bias(*biases_[i], sums[static_cast<std::int64_t>(i)].narrow(0, 0, num_experts_),
                           bias_update_rate_);
  }
}

std::vector<double> RouterWatch::sum_model(const at::Tensor& sums) {
  std::vector<double> table(static_cast<std::size_t>(num_layers_ * num_columns()));
  const at::Tensor on_host = sums.defined() ? sums.to(at::kCPU).contiguous() : sums;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const double* row = on_host.const_data_ptr<double>() + static_cast<std::int64_t>(i) * num_columns();
    std::copy(row, row + num_columns(), table.begin() + (layers_[i]->number - 1) * num_columns());
  }
  if (pipeline_.size() == 1) return table;
  return pipeline_.reduce_values(std::move(table), comm::ReduceOp::kSum, {"loads of experts of all stages"});
}

RoutedLayer RouterWatch::describe(std::int64_t number, const double* columns) const {
  // Each rank has counted each of its microbatches, so this many times does a loss occur in the sum of its shares.
  const double num_microbatches = columns[num_experts_ + 1] / ranks_per_sample_;
  at::Tensor tokens = at::empty({num_experts_}, at::kDouble);
  std::copy(columns, columns + num_experts_, tokens.data_ptr<double>());
  RoutedLayer layer{.number = number, .load = nn::summarize_load(tokens, columns[num_experts_]), .losses = {}};
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const double sum = columns[num_experts_ + 2 + static_cast<std::int64_t>(i)];
    layer.losses.emplace_back(losses_[i].name, sum / num_microbatches / losses_[i].coefficient);
  }
  return layer;
}

}  // namespace pharos::train

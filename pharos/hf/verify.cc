#include "pharos/hf/verify.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/hf/hf_config.h"
#include "pharos/hf/oracle.h"
#include "pharos/hf/weights.h"
#include "pharos/model/transformer.h"
#include "pharos/optim/gradient_buffer.h"
#include "pharos/optim/optimizer.h"

namespace pharos::hf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAbsolute = "absolute";
constexpr const char* kRelative = "relative L2";

/// Everything one verification runs on: the model in float32 on one rank of the CPU, and what to compare with.
class Session {
 public:
  Session(const fs::path& folder, const fs::path& oracle_path, at::Device device, const Tolerances& tolerances)
      : tolerances_(tolerances),
        device_(device),
        hf_(read_hf_config(folder)),
        oracle_path_(oracle_path),
        mesh_(1, {}),
        oracle_(read_oracle(oracle_path, folder, *hf_.model.vocab_size)) {
    config::ModelConfig& config = hf_.model;
    config.params_dtype = config::DType::kFloat32;
    config.bf16 = config.fp16 = false;
    const std::int64_t tokens = std::max(oracle_.input_ids.size(1), oracle_.batch_input_ids.size(2));
    if (tokens > config.seq_length && config.position_embedding_type == config::PositionEmbedding::kLearnedAbsolute) {
      throw base::UserError({.what = "'" + oracle_path.string() + "' has " + std::to_string(tokens) +
                                     " tokens a sequence, the model " + std::to_string(config.seq_length) +
                                     " positions.",
                             .where = oracle_path.string(),
                             .fix = "Give the oracle that was made from this folder."});
    }
    model_ = std::make_unique<model::Transformer>(config, model::whole_model(config), mesh_, 0);
    check_weights(model_->parameters(), folder, mesh_, 0);
    model_->allocate(device_);
    load_weights(model_->parameters(), folder, mesh_, 0);
    gradients_ = std::make_unique<optim::GradientBuffer>(model_->parameters());
  }

  VerifyResult run() {
    compare_forward();
    compare_backward();
    compare_trajectory();
    return std::move(result_);
  }

 private:
  void add(const std::string& name, double value, double tolerance, const char* unit) {
    result_.checks.push_back({name, value, tolerance, unit});
  }

  at::Tensor expected(const std::string& name, at::IntArrayRef shape) const {
    const auto* entry = oracle_.tensors.find(name);
    if (entry == nullptr || entry->shape != shape.vec()) {
      throw base::UserError(
          {.what = "'" + oracle_path_.string() + "': '" + name + "' " +
                   (entry == nullptr ? "is missing" : "has the shape " + checkpoint::shape_text(entry->shape)) +
                   ", the model has " + checkpoint::shape_text(shape.vec()) + ".",
           .where = oracle_path_.string(),
           .fix = "Give the oracle that was made from this folder."});
    }
    using Type = checkpoint::ElementType;
    const bool is_real = entry->type == Type::kF64 || entry->type == Type::kF32 || entry->type == Type::kBF16 ||
                         entry->type == Type::kF16;
    if (!is_real) {
      throw base::UserError({.what = "'" + oracle_path_.string() + "': '" + name + "' is not F64, F32, BF16 or F16.",
                             .where = oracle_path_.string(),
                             .fix = "Store the values as they were computed, without a conversion."});
    }
    const at::Tensor values = oracle_.tensors.view(name).to(at::kFloat);
    if (!at::isfinite(values).all().item<bool>()) {
      throw base::UserError(
          {.what = "'" + oracle_path_.string() + "': '" + name + "' holds values that are not finite.",
           .where = oracle_path_.string(),
           .why = "Nothing can be compared with them.",
           .fix = "Make the oracle again."});
    }
    return values;
  }

  static at::Tensor on_host(const at::Tensor& values) { return values.to(at::kCPU, at::kDouble); }

  static double largest_difference(const at::Tensor& a, const at::Tensor& b) {
    return (on_host(a) - on_host(b)).abs().max().item<double>();
  }

  nn::ForwardContext context_of(const at::Tensor& tokens) const {
    nn::ForwardContext context;
    context.positions = at::arange(tokens.size(1), at::TensorOptions().dtype(at::kLong).device(device_));
    return context;
  }

  void compare_hidden(const std::string& name, const at::Tensor& value) {
    if (oracle_.tensors.find(name) == nullptr) return;
    const at::Tensor reference = expected(name, value.sizes());
    add(name, largest_difference(value, reference),
        tolerances_.hidden * std::max(1.0, reference.abs().max().item<double>() / 5), kAbsolute);
  }

  void compare_forward() {
    const at::NoGradGuard no_grad;
    model_->set_activation_tap(
        [this](const std::string& name, const at::Tensor& value) { compare_hidden("hidden." + name, value); });
    const at::Tensor input_ids = oracle_.input_ids.to(device_);
    const at::Tensor hidden = model_->hidden_states(input_ids, context_of(input_ids));
    model_->set_activation_tap({});
    const at::Tensor logits = model_->logits(hidden).narrow(-1, 0, *hf_.model.vocab_size);
    add("logits", largest_difference(logits, expected("logits", logits.sizes())), tolerances_.logits, kAbsolute);
    if (oracle_.tensors.find("loss_shifted") != nullptr && input_ids.size(1) > 1) {
      const std::int64_t tokens = input_ids.size(1) - 1;
      const double loss =
          model_->token_losses(hidden.narrow(1, 0, tokens), input_ids.narrow(1, 1, tokens)).mean().item<double>();
      add("loss_shifted", std::abs(loss - expected("loss_shifted", {1}).item<double>()), tolerances_.loss, kAbsolute);
    }
  }

  /// Mean loss over all tokens; its gradient replaces the one in the buffer.
  double backward(const at::Tensor& host_tokens, const at::Tensor& host_labels) {
    gradients_->zero();
    const at::Tensor tokens = host_tokens.to(device_);
    const at::Tensor hidden = model_->hidden_states(tokens, context_of(tokens));
    const at::Tensor loss = model_->token_losses(hidden, host_labels.to(device_)).mean();
    loss.backward();
    return loss.item<double>();
  }

  void compare_backward() {
    const double loss = backward(oracle_.input_ids, oracle_.labels);
    add("loss", std::abs(loss - expected("loss", {1}).item<double>()), tolerances_.loss, kAbsolute);
    // Per tensor of the checkpoint, which may hold several pieces: squares of the difference and of the reference.
    struct Sums {
      double difference = 0, reference = 0;
    };
    std::map<std::string, Sums> sums;
    double squares = 0;
    const NameTable table = name_table(hf_);
    const bool with_prefix =
        oracle_.tensors.find("grad." + locate(table, "embedding.word_embeddings.weight", true)->tensor) != nullptr;
    for (const auto* parameter : model_->parameters()) {
      for (std::size_t i = 0; i < parameter->pieces.size(); ++i) {
        const tensor::Piece& piece = parameter->pieces[i];
        const Location location = *locate(table, piece.name, with_prefix);
        const at::Tensor gradient = on_host(tensor::piece_view(*parameter, parameter->main_grad, i, mesh_, 0));
        const std::string name = "grad." + location.tensor;
        expected(name, location.tensor_shape(piece.shape));
        const at::Tensor reference =
            read_piece(oracle_.tensors, "grad.", location, piece.shape, tensor::local_slice(piece, mesh_, 0))
                .to(at::kDouble);
        sums[name].difference += (gradient - reference).square().sum().item<double>();
        sums[name].reference += reference.square().sum().item<double>();
        squares += gradient.square().sum().item<double>();
      }
    }
    for (const auto& [name, sum] : sums)
      add(name, std::sqrt(sum.difference) / std::max(std::sqrt(sum.reference), 1e-30), tolerances_.gradient, kRelative);
    for (const std::string& name : oracle_.tensors.names()) {
      if (name.starts_with("grad.") && !sums.contains(name))
        add(name + " (not in the model)", std::nan(""), tolerances_.gradient, kRelative);
    }
    add("grad_norm", std::abs(std::sqrt(squares) - expected("grad_norm", {1}).item<double>()), tolerances_.grad_norm,
        kAbsolute);
  }

  void compare_trajectory() {
    const Trajectory& trajectory = oracle_.trajectory;
    optim::OptimizerOptions options;
    options.adam = {trajectory.beta1, trajectory.beta2, trajectory.epsilon, true};
    options.clip_grad = trajectory.clip_grad_norm;
    optim::Optimizer optimizer(*gradients_, options);
    double largest_loss = 0, largest_norm = 0;
    const auto widen = [](double& largest, double difference) {
      largest = difference <= largest ? largest : difference;
    };  // keeps NaN
    for (const OracleStep& step : trajectory.steps) {
      const double loss = backward(oracle_.batch_input_ids[step.batch], oracle_.batch_labels[step.batch]);
      const optim::StepResult done = optimizer.step(trajectory.learning_rate, trajectory.weight_decay);
      if (!std::isnan(largest_loss)) widen(largest_loss, std::abs(loss - step.loss));
      if (!std::isnan(largest_norm)) widen(largest_norm, std::abs(done.grad_norm - step.grad_norm));
    }
    add("trajectory.loss", largest_loss, tolerances_.trajectory_loss, kAbsolute);
    add("trajectory.grad_norm", largest_norm, tolerances_.trajectory_grad_norm, kAbsolute);
  }

  Tolerances tolerances_;
  at::Device device_;
  HfModel hf_;
  fs::path oracle_path_;
  comm::Mesh mesh_;
  Oracle oracle_;
  std::unique_ptr<model::Transformer> model_;
  std::unique_ptr<optim::GradientBuffer> gradients_;
  VerifyResult result_;
};

}  // namespace

bool VerifyResult::ok() const {
  return !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.ok(); });
}

VerifyResult verify(const fs::path& folder, const fs::path& oracle, config::DeviceKind device,
                    const Tolerances& tolerances) {
  const bool on_cuda = device == config::DeviceKind::kCuda;
  if (on_cuda && !at::hasCUDA()) {
    throw base::UserError({.what = "The device cuda is not here.",
                           .why = "This build of Pharos or this machine has no CUDA.",
                           .fix = "Leave --device out to compute on the CPU."});
  }
  return Session(folder, oracle, on_cuda ? at::kCUDA : at::kCPU, tolerances).run();
}

nlohmann::json to_json(const VerifyResult& result) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Check& check : result.checks) {
    checks.push_back({{"name", check.name},
                      {"value", check.value},
                      {"tolerance", check.tolerance},
                      {"unit", check.unit},
                      {"ok", check.ok()}});
  }
  return {{"ok", result.ok()}, {"checks", std::move(checks)}};
}

std::string render_table(const VerifyResult& result) {
  std::size_t width = 10, failed = 0;
  for (const Check& check : result.checks) width = std::max(width, check.name.size());
  std::string text = fmt::format("{:<{}}  {:>11}  {:>11}\n", "check", width, "difference", "tolerance");
  for (const Check& check : result.checks) {
    failed += check.ok() ? 0 : 1;
    text += fmt::format("{:<{}}  {:>11.2e}  {:>11.2e}  {} {}\n", check.name, width, check.value, check.tolerance,
                        check.unit, check.ok() ? "" : "OUTSIDE");
  }
  return text + (failed == 0 ? fmt::format("All {} checks are within tolerance.\n", result.checks.size())
                             : fmt::format("{} of {} checks are outside tolerance.\n", failed, result.checks.size()));
}

}  // namespace pharos::hf

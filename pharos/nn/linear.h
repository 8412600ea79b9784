// Linear layers whose weight gradient goes straight into the flat main-gradient buffer, at once or later.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "pharos/tensor/parameter.h"

namespace pharos::nn {

/// Weight-gradient work that a schedule runs after the input gradients (zero-bubble schedules). While an instance is
/// current on the thread that runs the forward pass, the linear layers of that pass queue their weight gradient in it.
class WeightGradientQueue {
 public:
  /// Makes `queue` current on this thread until the scope ends.
  class Scope {
   public:
    explicit Scope(WeightGradientQueue& queue);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    WeightGradientQueue* previous_;
  };
  static WeightGradientQueue* current();

  void push(std::function<void()> work) { work_.push_back(std::move(work)); }
  std::size_t size() const { return work_.size(); }
  /// Runs and forgets everything queued, in the order of the backward pass.
  void run_all();

 private:
  std::vector<std::function<void()>> work_;
};

/// y = x Wᵀ + b. weight: [out, in]; bias: [out]. The Parameters must not move between forward and backward.
struct Linear {
  tensor::Parameter weight;
  std::optional<tensor::Parameter> bias;

  /// input: [..., in] -> [..., out]. In backward, dW and db are added to main_grad where that is defined.
  at::Tensor forward(const at::Tensor& input) const;
};

/// The same with a weight that belongs to another layer (tied embeddings).
at::Tensor linear(const at::Tensor& input, const tensor::Parameter& weight, const tensor::Parameter* bias);

// Parts that plain and parallel linear layers are made of. They know no autograd.

/// The values of a small parameter that stay while others are used.
at::Tensor lasting_value(const tensor::Parameter& parameter);

/// input Wᵀ + b; `bias` may be null.
at::Tensor linear_product(const at::Tensor& input, const tensor::Parameter& weight, const tensor::Parameter* bias);

/// weight.main_grad += output_gradᵀ · input. input: [rows, in]; output_grad: [rows, out].
void add_weight_gradient(const tensor::Parameter& weight, const at::Tensor& input, const at::Tensor& output_grad);

/// bias.main_grad += column sums of output_grad [rows, out].
void add_bias_gradient(const tensor::Parameter& bias, const at::Tensor& output_grad);

/// Runs `work` now, or queues it.
void run_or_queue(WeightGradientQueue* queue, std::function<void()> work);

}  // namespace pharos::nn

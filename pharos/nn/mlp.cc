#include "pharos/nn/mlp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/base/error.h"

namespace pharos::nn {
namespace {

using config::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input) {
    context->save_for_backward({input});
    const auto halves = input.chunk(2, -1);
    return at::silu(halves[0]).mul_(halves[1]);
  }

  // d/dgate = g up silu'(gate); d/dup = g silu(gate).
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor input = context->get_saved_variables()[0].detach();
    const at::Tensor& grad = gradients[0];
    const auto halves = input.chunk(2, -1);
    at::Tensor input_grad = at::empty_like(input);
    auto grads = input_grad.chunk(2, -1);
    at::silu_out(grads[1], halves[0]);
    grads[1].mul_(grad);
    const at::Tensor through_up = grad * halves[1];
    at::silu_backward_out(grads[0], through_up, halves[0]);
    return {input_grad};
  }
};

}  // namespace

at::Tensor activate(const at::Tensor& input, Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return at::gelu(input);
    case Activation::kGeluTanh:
      return at::gelu(input, "tanh");
    case Activation::kRelu:
      return at::relu(input);
    case Activation::kSilu:
      return at::silu(input);
    case Activation::kSigmoid:
      return at::sigmoid(input);
    case Activation::kTanh:
      return at::tanh(input);
    case Activation::kSquaredRelu:
      return at::relu(input).square();
    case Activation::kQuickGelu:
      return input * at::sigmoid(1.702 * input);
  }
  throw base::InternalError("unknown activation");
}

at::Tensor swiglu(const at::Tensor& input) { return SwiGlu::apply(input); }

at::Tensor Mlp::forward(const at::Tensor& hidden) const {
  const at::Tensor inner = fc1.forward(hidden);
  if (!gated) return fc2.forward(activate(inner, activation));
  if (activation == Activation::kSilu && !clamp && up_offset == 0) return fc2.forward(swiglu(inner));
  const auto halves = inner.chunk(2, -1);
  at::Tensor gate = halves[0], up = halves[1];
  if (clamp) {
    gate = gate.clamp_max(*clamp);
    up = up.clamp(-*clamp, *clamp);
  }
  return fc2.forward(activate(gate, activation) * (up + up_offset));
}

}  // namespace pharos::nn

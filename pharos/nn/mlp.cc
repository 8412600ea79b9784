#include "pharos/nn/mlp.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "pharos/base/error.h"
#include "pharos/nn/kernels/kernels.h"

namespace pharos::nn {
namespace {

using config::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool fits_kernel(const at::Tensor& input, const at::Tensor& weights) {
  return kernels::fits(input) && (!weights.defined() || kernels::fits(weights));
}

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}).contiguous(); }

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weights) {
    context->save_for_backward({input, weights.value_or(at::Tensor())});
    if (const at::Tensor factors = weights.value_or(at::Tensor()); fits_kernel(input, factors)) {
      const at::Tensor rows = rows_of(input.detach());
      at::Tensor output = at::empty({rows.size(0), rows.size(1) / 2}, rows.options());
      kernels::swiglu_forward(rows, factors.defined() ? factors.detach().contiguous() : factors, output);
      std::vector<std::int64_t> sizes = input.sizes().vec();
      sizes.back() /= 2;
      return output.view(sizes);
    }
    const auto halves = input.detach().chunk(2, -1);
    at::Tensor output = at::silu(halves[0]).mul_(halves[1]);
    return weights ? output.mul_(weights->detach().unsqueeze(-1)) : output;
  }

  // With w the weight of the row: d/dgate = g w up silu'(gate); d/dup = g w silu(gate); d/dw = Σ g up silu(gate).
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor input = saved[0].detach(), weights = saved[1].defined() ? saved[1].detach() : at::Tensor();
    const at::Tensor& grad = gradients[0];
    if (fits_kernel(input, weights)) {
      const at::Tensor rows = rows_of(input);
      at::Tensor input_grad = at::empty_like(rows), weights_grad;
      if (weights.defined()) weights_grad = at::empty(weights.sizes(), weights.options());
      kernels::swiglu_backward(rows_of(grad), rows, weights.defined() ? weights.contiguous() : weights, input_grad,
                               weights_grad);
      return {input_grad.view(input.sizes()), weights_grad};
    }
    const auto halves = input.chunk(2, -1);
    at::Tensor input_grad = at::empty_like(input), weights_grad;
    auto grads = input_grad.chunk(2, -1);
    at::silu_out(grads[1], halves[0]);
    const at::Tensor through_up = grad * halves[1];
    if (weights.defined()) {
      weights_grad = (through_up * grads[1]).sum(-1, false, weights.scalar_type());
      through_up.mul_(weights.unsqueeze(-1));
      grads[1].mul_(weights.unsqueeze(-1));
    }
    grads[1].mul_(grad);
    at::silu_backward_out(grads[0], through_up, halves[0]);
    return {input_grad, weights_grad};
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

at::Tensor swiglu(const at::Tensor& input, const at::Tensor& weights) {
  return SwiGlu::apply(input, weights.defined() ? std::optional(weights) : std::nullopt);
}

at::Tensor Activated::forward(const at::Tensor& inner, const at::Tensor& weights) const {
  if (gated && activation == Activation::kSilu && !clamp && up_offset == 0) return swiglu(inner, weights);
  at::Tensor output;
  if (gated) {
    const auto halves = inner.chunk(2, -1);
    at::Tensor gate = halves[0], up = halves[1];
    if (clamp) {
      gate = gate.clamp_max(*clamp);
      up = up.clamp(-*clamp, *clamp);
    }
    output = activate(gate, activation) * (up + up_offset);
  } else {
    output = activate(inner, activation);
  }
  return weights.defined() ? (output * weights.unsqueeze(-1)).to(inner.scalar_type()) : output;
}

at::Tensor Mlp::forward(const at::Tensor& hidden) const {
  return fc2.forward(Activated{activation, gated, clamp, up_offset}.forward(fc1.forward(hidden)));
}

}  // namespace pharos::nn

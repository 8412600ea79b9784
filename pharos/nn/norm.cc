#include "pharos/nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/nn/kernels.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor factor_of(const Norm& norm) {
  const at::Tensor weight = norm.weight.data.detach().to(at::kFloat);
  return norm.zero_centered ? weight + 1 : weight;
}

at::Tensor bias_of(const Norm& norm) { return norm.bias ? norm.bias->data.detach().to(at::kFloat) : at::Tensor(); }

void add_to(const at::Tensor& main_grad, const at::Tensor& gradient) {
  if (main_grad.defined() && gradient.defined()) main_grad.add_(gradient);
}

/// d loss/d input of RMSNorm in ATen operations; equations as in kernels.cc.
at::Tensor rms_backward(const Norm& norm, const at::Tensor& output_grad, const at::Tensor& input,
                        const at::Tensor& inverse_rms) {
  const at::Tensor normalized = input.to(at::kFloat) * inverse_rms.unsqueeze(-1);
  const at::Tensor grad = output_grad.to(at::kFloat);
  add_to(norm.weight.main_grad, (grad * normalized).sum(0));
  const at::Tensor scaled = grad * factor_of(norm);
  const at::Tensor pull = (scaled * normalized).mean(-1, true);
  return (inverse_rms.unsqueeze(-1) * (scaled - normalized * pull)).to(input.scalar_type());
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight_data,
                            std::int64_t norm_address) {
    const Norm& norm = *reinterpret_cast<const Norm*>(norm_address);
    const std::int64_t width = weight_data.size(0);
    const at::Tensor rows = input.reshape({-1, width}).contiguous();
    at::Tensor output, mean, inverse;
    if (!norm.is_rms) {
      std::tie(output, mean, inverse) =
          at::native_layer_norm(rows.to(at::kFloat), {width}, factor_of(norm), bias_of(norm), norm.epsilon);
    } else if (kernels::fits(rows)) {
      output = at::empty_like(rows);
      inverse = at::empty({rows.size(0)}, rows.options());
      kernels::rms_norm_forward(rows, factor_of(norm), norm.epsilon, output, inverse);
    } else {
      const at::Tensor wide = rows.to(at::kFloat);
      inverse = at::rsqrt(wide.square().mean(-1) + norm.epsilon);
      output = wide * inverse.unsqueeze(-1) * factor_of(norm);
    }
    context->save_for_backward({rows, mean, inverse});
    context->saved_data["norm"] = norm_address;
    return output.to(input.scalar_type()).view(input.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Norm& norm = *reinterpret_cast<const Norm*>(context->saved_data["norm"].toInt());
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &mean = saved[1], &inverse = saved[2];
    const at::Tensor output_grad = gradients[0].reshape(rows.sizes()).contiguous();
    at::Tensor input_grad;
    if (!norm.is_rms) {
      auto [grad, weight_grad, bias_grad] =
          at::native_layer_norm_backward(output_grad.to(at::kFloat), rows.to(at::kFloat), {rows.size(1)}, mean, inverse,
                                         factor_of(norm), bias_of(norm), {true, true, norm.bias.has_value()});
      add_to(norm.weight.main_grad, weight_grad);
      if (norm.bias) add_to(norm.bias->main_grad, bias_grad);
      input_grad = grad.to(rows.scalar_type());
    } else if (kernels::fits(rows)) {
      input_grad = at::empty_like(rows);
      at::Tensor weight_grad = norm.weight.main_grad;
      kernels::rms_norm_backward(output_grad, rows, factor_of(norm), inverse, input_grad, weight_grad);
    } else {
      input_grad = rms_backward(norm, output_grad, rows, inverse);
    }
    return {input_grad.view(gradients[0].sizes()), {}, {}};
  }
};

}  // namespace

at::Tensor Norm::forward(const at::Tensor& input) const {
  return NormFunction::apply(input, weight.data, reinterpret_cast<std::int64_t>(this));
}

}  // namespace pharos::nn

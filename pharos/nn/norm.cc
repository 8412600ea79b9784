#include "pharos/nn/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/nn/kernels/kernels.h"
#include "pharos/nn/linear.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor factor_of(const Norm& norm) {
  const at::Tensor weight = lasting_value(norm.weight).to(at::kFloat);
  return norm.zero_centered ? weight + 1 : weight;
}

at::Tensor bias_of(const Norm& norm) { return norm.bias ? lasting_value(*norm.bias).to(at::kFloat) : at::Tensor(); }

void add_to(const tensor::Parameter& parameter, const at::Tensor& gradient) {
  tensor::add_gradient(parameter, [&](at::Tensor main_grad) { main_grad.add_(gradient); });
}

/// d loss/d input of RMSNorm in ATen operations; equations as in kernels.cc.
at::Tensor rms_backward(const Norm& norm, const at::Tensor& output_grad, const at::Tensor& input,
                        const at::Tensor& inverse_rms) {
  const at::Tensor normalized = input.to(at::kFloat) * inverse_rms.unsqueeze(-1);
  const at::Tensor grad = output_grad.to(at::kFloat);
  const at::Tensor scaled = grad * factor_of(norm);
  add_to(norm.weight, (grad * normalized).sum(0));
  const at::Tensor pull = (scaled * normalized).mean(-1, true);
  return (inverse_rms.unsqueeze(-1) * (scaled - normalized * pull)).to(input.scalar_type());
}

/// The same in one pass that adds the weight's gradient on its way.
at::Tensor rms_backward_in_kernel(const Norm& norm, const at::Tensor& output_grad, const at::Tensor& input,
                                  const at::Tensor& inverse_rms) {
  const at::Tensor factor = factor_of(norm);
  at::Tensor input_grad = at::empty_like(input), nowhere;
  bool is_done = false;
  tensor::add_gradient(norm.weight, [&](at::Tensor main_grad) {
    kernels::rms_norm_backward(output_grad, input, factor, inverse_rms, input_grad, main_grad);
    is_done = true;
  });
  if (!is_done) kernels::rms_norm_backward(output_grad, input, factor, inverse_rms, input_grad, nowhere);
  return input_grad;
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*weight_data*/,
                            std::int64_t norm_address) {
    const Norm& norm = *reinterpret_cast<const Norm*>(norm_address);
    const std::int64_t width = input.size(-1);
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
      add_to(norm.weight, weight_grad);
      if (norm.bias) add_to(*norm.bias, bias_grad);
      input_grad = grad.to(rows.scalar_type());
    } else if (kernels::fits(rows)) {
      input_grad = rms_backward_in_kernel(norm, output_grad, rows, inverse);
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

#include "pharos/nn/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/nn/kernels.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct EmbedFunction : torch::autograd::Function<EmbedFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& indices, const at::Tensor& weight_data,
                            std::int64_t weight) {
    context->save_for_backward({indices});
    context->saved_data["weight"] = weight;
    return at::embedding(weight_data, indices);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    at::Tensor main_grad = reinterpret_cast<const tensor::Parameter*>(context->saved_data["weight"].toInt())->main_grad;
    if (main_grad.defined()) {
      const at::Tensor indices = context->get_saved_variables()[0].reshape(-1).contiguous();
      const at::Tensor rows =
          gradients[0].reshape({indices.numel(), main_grad.size(1)}).to(main_grad.scalar_type()).contiguous();
      if (kernels::fits(main_grad)) {
        kernels::add_rows(main_grad, indices, rows);
      } else {
        main_grad.index_add_(0, indices, rows);
      }
    }
    return {{}, {}, {}};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& indices, const tensor::Parameter& weight) {
  return EmbedFunction::apply(indices, weight.data, reinterpret_cast<std::int64_t>(&weight));
}

at::Tensor Embedding::forward(const at::Tensor& tokens, const ForwardContext& context) const {
  at::Tensor hidden = embed(tokens, words);
  if (positions) hidden = hidden + embed(context.positions, *positions);
  return nn::dropout(hidden, dropout, "embedding.dropout", context);
}

}  // namespace pharos::nn

#include "pharos/nn/embedding.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "pharos/nn/kernels/kernels.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// weight.main_grad[indices[i]] += rows[i].
void add_row_gradients(const tensor::Parameter& weight, const at::Tensor& indices, const at::Tensor& rows) {
  tensor::add_gradient(weight, [&](at::Tensor main_grad) {
    const at::Tensor added = rows.to(main_grad.scalar_type()).contiguous();
    if (kernels::fits(main_grad)) {
      kernels::add_rows(main_grad, indices, added);
    } else {
      main_grad.index_add_(0, indices, added);
    }
  });
}

struct EmbedFunction : torch::autograd::Function<EmbedFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& indices, const at::Tensor& /*weight_data*/,
                            const tensor::Parameter* weight) {
    context->save_for_backward({indices});
    context->saved_data["weight"] = reinterpret_cast<std::int64_t>(weight);
    return at::embedding(tensor::value(*weight), indices);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto* weight = reinterpret_cast<const tensor::Parameter*>(context->saved_data["weight"].toInt());
    const at::Tensor indices = context->get_saved_variables()[0].reshape(-1).contiguous();
    add_row_gradients(*weight, indices, gradients[0].reshape({indices.numel(), gradients[0].size(-1)}));
    return {{}, {}, {}};
  }
};

struct EmbedVocabularyFunction : torch::autograd::Function<EmbedVocabularyFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& indices, const at::Tensor& /*weight_data*/,
                            const tensor::Parameter* weight, const TensorParallel& parallel) {
    const at::Tensor table = tensor::value(*weight).detach();
    const std::int64_t rows = table.size(0);
    // No rank would miss such an index, and its row would silently be zero.
    at::_assert_async((indices >= 0).logical_and_(indices < rows * parallel.size()).all(),
                      "a token is not in the table");
    const at::Tensor local = indices - rows * parallel.rank();
    const at::Tensor outside = (local < 0).logical_or_(local >= rows);
    const at::Tensor own = local.masked_fill(outside, 0);
    context->save_for_backward({own, outside});
    context->saved_data["weight"] = reinterpret_cast<std::int64_t>(weight);
    context->saved_data["group"] = reinterpret_cast<std::int64_t>(parallel.group);
    context->saved_data["sequence"] = parallel.sequence;
    const at::Tensor found = at::embedding(table, own).masked_fill_(outside.unsqueeze(-1), 0);
    return reduce_output(found, parallel, "vocabulary-parallel embedding");
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& data = context->saved_data;
    const auto* weight = reinterpret_cast<const tensor::Parameter*>(data["weight"].toInt());
    const TensorParallel parallel{reinterpret_cast<comm::Group*>(data["group"].toInt()), data["sequence"].toBool()};
    const auto saved = context->get_saved_variables();
    at::Tensor grad = gradients[0];
    if (parallel.splits_tokens()) {
      grad = TokenGather(grad, parallel, "vocabulary-parallel embedding gradient").wait();
    }
    // Rows of other ranks add zeros to the first one: to count the own ones a GPU would have to be waited for.
    grad = grad.masked_fill(saved[1].unsqueeze(-1), 0);
    add_row_gradients(*weight, saved[0].reshape(-1), grad.reshape({-1, grad.size(-1)}));
    return {{}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor embed(const at::Tensor& indices, const tensor::Parameter& weight) {
  return EmbedFunction::apply(indices, weight.data, &weight);
}

at::Tensor embed_vocabulary(const at::Tensor& indices, const tensor::Parameter& weight,
                            const TensorParallel& parallel) {
  if (!parallel.is_split()) return embed(indices, weight);
  return EmbedVocabularyFunction::apply(indices, weight.data, &weight, parallel);
}

at::Tensor Embedding::forward(const at::Tensor& tokens, const ForwardContext& context) const {
  at::Tensor hidden = embed_vocabulary(tokens, words, parallel);
  // The published models multiply by the factor rounded to the compute type.
  if (scale != 1) hidden = hidden * at::scalar_tensor(scale, hidden.options());
  if (positions) {
    const std::int64_t count = hidden.size(1), first = parallel.splits_tokens() ? parallel.rank() * count : 0;
    hidden = hidden + embed(context.positions.narrow(-1, first, count), *positions);
  }
  return dropout_of_tokens(hidden, dropout, "embedding.dropout", context, parallel, context_parallel);
}

}  // namespace pharos::nn

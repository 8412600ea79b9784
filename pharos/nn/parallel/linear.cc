#include "pharos/nn/parallel/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace pharos::nn {
namespace {

using tensor::Parameter;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What the backward pass of a layer needs to know beside tensors.
struct Layer {
  const Parameter* weight;
  const Parameter* bias;  ///< may be null
  WeightGradientQueue* queue;
  TensorParallel parallel;
};

template <typename Pointer>
std::int64_t as_integer(Pointer* pointer) {
  return reinterpret_cast<std::int64_t>(pointer);
}

void keep(AutogradContext* context, const Layer& layer) {
  context->saved_data["weight"] = as_integer(layer.weight);
  context->saved_data["bias"] = as_integer(layer.bias);
  context->saved_data["queue"] = as_integer(layer.queue);
  context->saved_data["group"] = as_integer(layer.parallel.group);
  context->saved_data["sequence"] = layer.parallel.sequence;
}

Layer kept_layer(AutogradContext* context) {
  auto& saved = context->saved_data;
  return {reinterpret_cast<const Parameter*>(saved["weight"].toInt()),
          reinterpret_cast<const Parameter*>(saved["bias"].toInt()),
          reinterpret_cast<WeightGradientQueue*>(saved["queue"].toInt()),
          {reinterpret_cast<comm::Group*>(saved["group"].toInt()), saved["sequence"].toBool()}};
}

at::Tensor as_rows(const at::Tensor& tensor) { return tensor.detach().reshape({-1, tensor.size(-1)}); }

void add_gradients(const Layer& layer, const at::Tensor& input, const at::Tensor& output_grad) {
  add_weight_gradient(*layer.weight, as_rows(input), output_grad);
  if (layer.bias != nullptr) add_bias_gradient(*layer.bias, output_grad);
}

/// dX = Σ_r dY_r W_r, reduced while dW_r is computed.
at::Tensor backward_of_whole_tokens(const Layer& layer, const at::Tensor& input, const at::Tensor& output_grad) {
  const at::Tensor input_grad = at::mm(output_grad, tensor::value(*layer.weight));
  comm::Work work =
      layer.parallel.group->all_reduce(input_grad, comm::ReduceOp::kSum, {"column-parallel input gradient"});
  run_or_queue(layer.queue, [=] { add_gradients(layer, input, output_grad); });
  work.wait();
  return input_grad.view(input.sizes());
}

/// The same for a part of the tokens: X is gathered while dX is computed, dX is scattered while dW_r is computed.
at::Tensor backward_of_divided_tokens(const Layer& layer, const at::Tensor& part, const at::Tensor& output_grad) {
  constexpr const char* kGather = "column-parallel input, again";
  const std::int64_t batch = part.size(0), width = part.size(2);
  const auto scatter = [&] {
    const at::Tensor input_grad = at::mm(output_grad, tensor::value(*layer.weight)).view({batch, -1, width});
    return TokenScatter(input_grad, layer.parallel, "column-parallel input gradient");
  };
  if (layer.queue != nullptr) {  // until its turn comes the work holds this rank's part only
    TokenScatter input_grad = scatter();
    layer.queue->push([=] { add_gradients(layer, TokenGather(part, layer.parallel, kGather).wait(), output_grad); });
    return input_grad.wait();
  }
  TokenGather gather(part, layer.parallel, kGather);
  TokenScatter input_grad = scatter();
  add_gradients(layer, gather.wait(), output_grad);
  return input_grad.wait();
}

struct ColumnLinearFunction : torch::autograd::Function<ColumnLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*weight_data*/,
                            const Layer& layer) {
    context->save_for_backward({input});
    keep(context, layer);
    if (!layer.parallel.splits_tokens()) return linear_product(input, *layer.weight, layer.bias);
    TokenGather gather(input, layer.parallel, "column-parallel input");
    return linear_product(gather.wait(), *layer.weight, layer.bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Layer layer = kept_layer(context);
    const at::Tensor input = context->get_saved_variables()[0].detach(), output_grad = as_rows(gradients[0]);
    return {layer.parallel.splits_tokens() ? backward_of_divided_tokens(layer, input, output_grad)
                                           : backward_of_whole_tokens(layer, input, output_grad),
            {},
            {}};
  }
};

struct RowLinearFunction : torch::autograd::Function<RowLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*weight_data*/,
                            const Layer& layer) {
    context->save_for_backward({input});
    keep(context, layer);
    at::Tensor output =
        reduce_output(linear_product(input, *layer.weight, nullptr), layer.parallel, "row-parallel output");
    if (layer.bias != nullptr) output.add_(tensor::value(*layer.bias).detach());
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Layer layer = kept_layer(context);
    const at::Tensor input = context->get_saved_variables()[0].detach(), own_grad = as_rows(gradients[0]);
    at::Tensor output_grad = own_grad;
    if (layer.parallel.splits_tokens()) {
      TokenGather gather(gradients[0], layer.parallel, "row-parallel output gradient");
      output_grad = as_rows(gather.wait());
    }
    run_or_queue(layer.queue, [=] {
      add_weight_gradient(*layer.weight, as_rows(input), output_grad);
      if (layer.bias != nullptr) add_bias_gradient(*layer.bias, own_grad);
    });
    return {at::mm(output_grad, tensor::value(*layer.weight)).view(input.sizes()), {}, {}};
  }
};

}  // namespace

at::Tensor column_linear(const at::Tensor& input, const Parameter& weight, const Parameter* bias,
                         const TensorParallel& parallel) {
  if (!parallel.is_split()) return linear(input, weight, bias);
  return ColumnLinearFunction::apply(input, weight.data,
                                     Layer{&weight, bias, WeightGradientQueue::current(), parallel});
}

at::Tensor ColumnLinear::forward(const at::Tensor& input) const {
  return column_linear(input, weight, bias ? &*bias : nullptr, parallel);
}

at::Tensor RowLinear::forward(const at::Tensor& input) const {
  const Parameter* bias_parameter = bias ? &*bias : nullptr;
  if (!parallel.is_split()) return linear(input, weight, bias_parameter);
  return RowLinearFunction::apply(input, weight.data,
                                  Layer{&weight, bias_parameter, WeightGradientQueue::current(), parallel});
}

}  // namespace pharos::nn

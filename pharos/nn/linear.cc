#include "pharos/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local WeightGradientQueue* current_queue = nullptr;

template <typename Pointer>
std::int64_t as_integer(Pointer* pointer) {
  return reinterpret_cast<std::int64_t>(pointer);
}

/// weight.main_grad += output_gradᵀ · input, and bias.main_grad += column sums of output_grad.
void add_weight_gradient(const tensor::Parameter& weight, const tensor::Parameter* bias, const at::Tensor& input,
                         const at::Tensor& output_grad) {
  const c10::InferenceMode guard(false);
  const at::NoGradGuard no_grad;
  if (weight.main_grad.defined()) {
    at::Tensor main_grad = weight.main_grad;
    if (input.scalar_type() == main_grad.scalar_type()) {
      at::addmm_out(main_grad, main_grad, output_grad.t(), input);
    } else {
      main_grad.add_(at::mm(output_grad.t(), input));
    }
  }
  if (bias != nullptr && bias->main_grad.defined()) {
    at::Tensor main_grad = bias->main_grad;
    main_grad.add_(output_grad.sum(0, false, main_grad.scalar_type()));
  }
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  // weight_data is an argument of its own so that autograd sees a differentiable input even where `input` is not one.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight_data,
                            std::int64_t weight, std::int64_t bias, std::int64_t queue) {
    context->save_for_backward({input, weight_data});
    context->saved_data["weight"] = weight;
    context->saved_data["bias"] = bias;
    context->saved_data["queue"] = queue;
    const auto* bias_parameter = reinterpret_cast<const tensor::Parameter*>(bias);
    return at::linear(input, weight_data,
                      bias_parameter == nullptr ? std::optional<at::Tensor>() : bias_parameter->data);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& weight_data = saved[1];
    const at::Tensor output_grad = gradients[0].reshape({-1, weight_data.size(0)});
    const at::Tensor input = saved[0].reshape({-1, weight_data.size(1)}).detach();
    const auto* weight = reinterpret_cast<const tensor::Parameter*>(context->saved_data["weight"].toInt());
    const auto* bias = reinterpret_cast<const tensor::Parameter*>(context->saved_data["bias"].toInt());
    auto* queue = reinterpret_cast<WeightGradientQueue*>(context->saved_data["queue"].toInt());
    if (queue != nullptr) {
      queue->push([=] { add_weight_gradient(*weight, bias, input, output_grad); });
    } else {
      add_weight_gradient(*weight, bias, input, output_grad);
    }
    at::Tensor input_grad;
    if (context->needs_input_grad(0)) input_grad = at::mm(output_grad, weight_data).view(saved[0].sizes());
    return {input_grad, {}, {}, {}, {}};
  }
};

}  // namespace

WeightGradientQueue::Scope::Scope(WeightGradientQueue& queue) : previous_(std::exchange(current_queue, &queue)) {}
WeightGradientQueue::Scope::~Scope() { current_queue = previous_; }
WeightGradientQueue* WeightGradientQueue::current() { return current_queue; }

void WeightGradientQueue::run_all() {
  for (auto& work : std::exchange(work_, {})) work();
}

at::Tensor linear(const at::Tensor& input, const tensor::Parameter& weight, const tensor::Parameter* bias) {
  return LinearFunction::apply(input, weight.data, as_integer(&weight), as_integer(bias), as_integer(current_queue));
}

at::Tensor Linear::forward(const at::Tensor& input) const { return linear(input, weight, bias ? &*bias : nullptr); }

}  // namespace pharos::nn

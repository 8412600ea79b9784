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

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  // weight_data is an argument of its own so that autograd sees a differentiable input even where `input` is not one.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*weight_data*/,
                            std::int64_t weight, std::int64_t bias, std::int64_t queue) {
    context->save_for_backward({input});
    context->saved_data["weight"] = weight;
    context->saved_data["bias"] = bias;
    context->saved_data["queue"] = queue;
    return linear_product(input, *reinterpret_cast<const tensor::Parameter*>(weight),
                          reinterpret_cast<const tensor::Parameter*>(bias));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor saved = context->get_saved_variables()[0];
    const at::Tensor output_grad = gradients[0].reshape({-1, gradients[0].size(-1)});
    const at::Tensor input = saved.reshape({-1, saved.size(-1)}).detach();
    const auto* weight = reinterpret_cast<const tensor::Parameter*>(context->saved_data["weight"].toInt());
    const auto* bias = reinterpret_cast<const tensor::Parameter*>(context->saved_data["bias"].toInt());
    run_or_queue(reinterpret_cast<WeightGradientQueue*>(context->saved_data["queue"].toInt()), [=] {
      add_weight_gradient(*weight, input, output_grad);
      if (bias != nullptr) add_bias_gradient(*bias, output_grad);
    });
    at::Tensor input_grad;
    if (context->needs_input_grad(0)) input_grad = at::mm(output_grad, tensor::value(*weight)).view(saved.sizes());
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

void run_or_queue(WeightGradientQueue* queue, std::function<void()> work) {
  if (queue != nullptr) {
    queue->push(std::move(work));
  } else {
    work();
  }
}

at::Tensor lasting_value(const tensor::Parameter& parameter) {
  const at::Tensor value = tensor::value(parameter).detach();
  return parameter.keeper == nullptr ? value : value.clone();
}

at::Tensor linear_product(const at::Tensor& input, const tensor::Parameter& weight, const tensor::Parameter* bias) {
  std::optional<at::Tensor> bias_value;
  if (bias != nullptr) bias_value = lasting_value(*bias);
  return at::linear(input, tensor::value(weight), bias_value);
}

void add_weight_gradient(const tensor::Parameter& weight, const at::Tensor& input, const at::Tensor& output_grad) {
  const c10::InferenceMode guard(false);
  const at::NoGradGuard no_grad;
  tensor::add_gradient(weight, [&](at::Tensor main_grad) {
    if (input.scalar_type() == main_grad.scalar_type()) {
      at::addmm_out(main_grad, main_grad, output_grad.t(), input);
    } else {
      main_grad.add_(at::mm(output_grad.t(), input));
    }
  });
}

void add_bias_gradient(const tensor::Parameter& bias, const at::Tensor& output_grad) {
  const c10::InferenceMode guard(false);
  const at::NoGradGuard no_grad;
  tensor::add_gradient(
      bias, [&](at::Tensor main_grad) { main_grad.add_(output_grad.sum(0, false, main_grad.scalar_type())); });
}

at::Tensor linear(const at::Tensor& input, const tensor::Parameter& weight, const tensor::Parameter* bias) {
  return LinearFunction::apply(input, weight.data, as_integer(&weight), as_integer(bias), as_integer(current_queue));
}

at::Tensor Linear::forward(const at::Tensor& input) const { return linear(input, weight, bias ? &*bias : nullptr); }

}  // namespace pharos::nn

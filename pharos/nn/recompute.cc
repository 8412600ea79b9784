#include "pharos/nn/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <utility>

#include "pharos/nn/linear.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Holder : torch::CustomClassHolder {
  explicit Holder(Recomputed function) : function(std::move(function)) {}
  Recomputed function;
};

thread_local bool recomputing = false;

struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* context, at::TensorList inputs, const Recomputed* function) {
    context->save_for_backward(inputs.vec());
    context->saved_data["queue"] = reinterpret_cast<std::int64_t>(WeightGradientQueue::current());
    context->saved_data["function"] = c10::IValue::make_capsule(c10::make_intrusive<Holder>(*function));
    return (*function)(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["function"].toCapsule());
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    at::Tensor output;
    {
      const at::AutoGradMode with_gradients(true);
      std::optional<WeightGradientQueue::Scope> scope;
      auto* queue = reinterpret_cast<WeightGradientQueue*>(context->saved_data["queue"].toInt());
      if (queue != nullptr) scope.emplace(*queue);
      const bool outer = std::exchange(recomputing, true);
      output = holder->function(inputs);
      recomputing = outer;
    }
    torch::autograd::backward({output}, {gradients[0]});
    variable_list input_grads;
    for (const at::Tensor& input : inputs) input_grads.push_back(input.grad());
    input_grads.emplace_back();
    return input_grads;
  }
};

}  // namespace

bool is_recomputing() { return recomputing; }

at::Tensor recompute(const Recomputed& function, const std::vector<at::Tensor>& inputs) {
  return Recompute::apply(at::TensorList(inputs), &function);
}

}  // namespace pharos::nn

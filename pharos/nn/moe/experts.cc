#include "pharos/nn/moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/nn/linear.h"
#include "pharos/nn/mlp.h"

namespace pharos::nn {
namespace {

using tensor::Parameter;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<std::int64_t>;

template <typename Pointer>
std::int64_t as_integer(Pointer* pointer) {
  return reinterpret_cast<std::int64_t>(pointer);
}

template <typename Pointee>
Pointee* as_pointer(const c10::IValue& value) {
  return reinterpret_cast<Pointee*>(value.toInt());
}

/// Calls body(expert, first row, rows) for each expert that has rows.
template <typename Body>
void for_each_run(const Counts& counts, const Body& body) {
  std::int64_t first = 0;
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    if (counts[expert] > 0) body(static_cast<std::int64_t>(expert), first, counts[expert]);
    first += counts[expert];
  }
}

/// The same on the CPU's threads, one product a thread: small products gain little from several. `body` must not touch
/// what that of another expert writes.
template <typename Body>
void for_each_run_in_parallel(const at::Tensor& rows, const Counts& counts, const Body& body) {
  const auto num_runs = std::count_if(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; });
  if (!rows.is_cpu() || num_runs < 2 * at::get_num_threads() || at::in_parallel_region()) {
    return for_each_run(counts, body);
  }
  struct Run {
    std::int64_t expert, first, count;
  };
  std::vector<Run> runs;
  for_each_run(counts, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    runs.push_back({expert, first, count});
  });
  const at::ThreadLocalState state;  // whether there are gradients, and whether this is inference
  at::parallel_for(0, std::ssize(runs), 1, [&](std::int64_t begin, std::int64_t end) {
    const at::ThreadLocalStateGuard as_caller(state);
    for (std::int64_t i = begin; i < end; ++i) {
      const Run& run = runs[static_cast<std::size_t>(i)];
      body(run.expert, run.first, run.count);
    }
  });
}

/// True when one kernel can do all runs: bfloat16 on CUDA, rows of a multiple of 16 bytes.
bool has_grouped_kernel(const at::Tensor& rows, const at::Tensor& weights) {
  return rows.is_cuda() && rows.scalar_type() == at::kBFloat16 && weights.scalar_type() == at::kBFloat16 &&
         rows.size(0) > 0 && weights.size(1) % 8 == 0 && weights.size(2) % 8 == 0;
}

/// Where each run ends, as the grouped kernel wants it.
at::Tensor ends_of(const Counts& counts, const at::Tensor& rows) {
  std::vector<std::int32_t> ends;
  std::int64_t end = 0;
  for (const auto count : counts) ends.push_back(static_cast<std::int32_t>(end += count));
  return at::tensor(ends, at::kInt).to(rows.device(), /*non_blocking=*/true);
}

/// rows of run e times matrices[e]: [n, in] by [experts, in, out] -> [n, out].
at::Tensor multiply_runs(const at::Tensor& rows, const Counts& counts, const at::Tensor& matrices) {
  if (has_grouped_kernel(rows, matrices)) return at::_grouped_mm(rows, matrices, ends_of(counts, rows));
  at::Tensor output = at::empty({rows.size(0), matrices.size(2)}, rows.options());
  for_each_run_in_parallel(rows, counts, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
    at::Tensor run = output.narrow(0, first, count);
    at::mm_out(run, rows.narrow(0, first, count), matrices.select(0, expert));
  });
  return output;
}

/// weight.main_grad[e] += output_gradᵀ · rows over run e.
void add_run_gradients(const Parameter& weight, const at::Tensor& rows, const Counts& counts,
                       const at::Tensor& output_grad) {
  const c10::InferenceMode guard(false);
  const at::NoGradGuard no_grad;
  tensor::add_gradient(weight, [&](const at::Tensor& main_grad) {
    for_each_run_in_parallel(rows, counts, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      at::Tensor sum = main_grad.select(0, expert);
      const at::Tensor grad = output_grad.narrow(0, first, count).t(), input = rows.narrow(0, first, count);
      if (input.scalar_type() == sum.scalar_type()) {
        at::addmm_out(sum, sum, grad, input);
      } else {
        sum.add_(at::mm(grad, input));
      }
    });
  });
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  // weight_data is an argument of its own so that autograd sees a differentiable input even where `rows` is not one.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& /*weight_data*/,
                            const Counts& counts, const Parameter* weight) {
    context->save_for_backward({rows});
    context->saved_data["counts"] = counts;
    context->saved_data["weight"] = as_integer(weight);
    context->saved_data["queue"] = as_integer(WeightGradientQueue::current());
    return multiply_runs(rows.detach(), counts, tensor::value(*weight).detach().transpose(1, 2));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor rows = context->get_saved_variables()[0].detach(), output_grad = gradients[0].contiguous();
    const auto counts = context->saved_data["counts"].toIntVector();
    const auto* weight = as_pointer<const Parameter>(context->saved_data["weight"]);
    run_or_queue(as_pointer<WeightGradientQueue>(context->saved_data["queue"]),
                 [=] { add_run_gradients(*weight, rows, counts, output_grad); });
    at::Tensor rows_grad;
    if (context->needs_input_grad(0)) {
      rows_grad = multiply_runs(output_grad, counts, tensor::value(*weight).detach());
    }
    return {rows_grad, {}, {}, {}};
  }
};

/// rows of run e + bias[e], times each row's weight where there are `weights` [n]. Takes `rows` over.
struct GroupedBias : torch::autograd::Function<GroupedBias> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const std::optional<at::Tensor>& weights,
                            const at::Tensor& /*bias_data*/, const Counts& counts, const Parameter* bias) {
    context->mark_dirty({rows});
    context->save_for_backward({weights.value_or(at::Tensor())});
    context->saved_data["counts"] = counts;
    context->saved_data["bias"] = as_integer(bias);
    context->saved_data["queue"] = as_integer(WeightGradientQueue::current());
    const at::Tensor values = tensor::value(*bias).detach();
    for_each_run(counts, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      at::Tensor run = rows.detach().narrow(0, first, count);
      if (weights) {
        run.addr_(weights->detach().narrow(0, first, count), values.select(0, expert));
      } else {
        run.add_(values.select(0, expert));
      }
    });
    return rows;
  }

  // With w the weight of a row: d/drow = g; d/dw = g · bias; d/dbias = Σ w g.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor& grad = gradients[0];
    const at::Tensor saved = context->get_saved_variables()[0];
    const at::Tensor weights = saved.defined() ? saved.detach() : saved;
    const auto counts = context->saved_data["counts"].toIntVector();
    const auto* bias = as_pointer<const Parameter>(context->saved_data["bias"]);
    run_or_queue(as_pointer<WeightGradientQueue>(context->saved_data["queue"]),
                 [=] { add_bias_gradients(*bias, weights, counts, grad); });
    at::Tensor weights_grad;
    if (weights.defined()) {
      weights_grad = at::empty_like(weights);
      const at::Tensor values = tensor::value(*bias).detach();
      for_each_run(counts, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
        at::Tensor run = weights_grad.narrow(0, first, count);
        at::mv_out(run, grad.narrow(0, first, count), values.select(0, expert));
      });
    }
    return {grad, weights_grad, {}, {}, {}};
  }

  static void add_bias_gradients(const Parameter& bias, const at::Tensor& weights, const Counts& counts,
                                 const at::Tensor& grad) {
    const c10::InferenceMode guard(false);
    const at::NoGradGuard no_grad;
    tensor::add_gradient(bias, [&](const at::Tensor& main_grad) {
      for_each_run(counts, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
        const at::Tensor run = grad.narrow(0, first, count);
        at::Tensor sum = main_grad.select(0, expert);
        sum.add_(weights.defined() ? at::mv(run.t(), weights.narrow(0, first, count))
                                   : run.sum(0, false, main_grad.scalar_type()));
      });
    });
  }
};

/// grouped_linear(activated.forward(inner, weights)) that keeps `inner` instead of what it multiplies.
struct ActivatedLinear : torch::autograd::Function<ActivatedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& inner, const at::Tensor& weights,
                            const at::Tensor& /*weight_data*/, const Activated& activated, const Counts& counts,
                            const Parameter* weight) {
    context->save_for_backward({inner, weights});
    auto& saved = context->saved_data;
    saved["activation"] = static_cast<std::int64_t>(activated.activation);
    saved["gated"] = activated.gated;
    saved["clamp"] = activated.clamp;
    saved["up_offset"] = activated.up_offset;
    saved["counts"] = counts;
    saved["weight"] = as_integer(weight);
    saved["queue"] = as_integer(WeightGradientQueue::current());
    return multiply_runs(activated.forward(inner.detach(), weights.detach()), counts,
                         tensor::value(*weight).detach().transpose(1, 2));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& saved = context->saved_data;
    const Activated activated{static_cast<config::Activation>(saved["activation"].toInt()), saved["gated"].toBool(),
                              saved["clamp"].toOptional<double>(), saved["up_offset"].toDouble()};
    const auto counts = saved["counts"].toIntVector();
    const auto* weight = as_pointer<const Parameter>(saved["weight"]);
    const at::Tensor output_grad = gradients[0].contiguous();
    variable_list inputs;
    for (const at::Tensor& input : context->get_saved_variables()) inputs.push_back(input.detach().requires_grad_());
    at::Tensor rows;
    {
      const at::AutoGradMode with_gradients(true);
      rows = activated.forward(inputs[0], inputs[1]);
    }
    run_or_queue(as_pointer<WeightGradientQueue>(saved["queue"]),
                 [=, rows = rows.detach()] { add_run_gradients(*weight, rows, counts, output_grad); });
    const at::Tensor rows_grad = multiply_runs(output_grad, counts, tensor::value(*weight).detach());
    auto grads = torch::autograd::grad({rows}, inputs, {rows_grad});
    return {grads[0], grads[1], {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& rows, const Counts& counts, const Parameter& weight,
                          const Parameter* bias) {
  PHAROS_CHECK(std::ssize(counts) == weight.data.size(0), "a number of rows for each expert wanted");
  const at::Tensor output = GroupedLinear::apply(rows.contiguous(), weight.data, counts, &weight);
  return bias == nullptr ? output : GroupedBias::apply(output, std::optional<at::Tensor>(), bias->data, counts, bias);
}

at::Tensor Experts::forward(const at::Tensor& rows, const Counts& counts, const at::Tensor& probabilities) const {
  const Activated activated{activation, gated, clamp, up_offset};
  const at::Tensor inner = grouped_linear(rows, counts, fc1, fc1_bias ? &*fc1_bias : nullptr);
  const at::Tensor output = recompute_activation && c10::GradMode::is_enabled()
                                ? ActivatedLinear::apply(inner, probabilities, fc2.data, activated, counts, &fc2)
                                : grouped_linear(activated.forward(inner, probabilities), counts, fc2, nullptr);
  if (!fc2_bias) return output;
  return GroupedBias::apply(output, std::optional(probabilities.to(output.scalar_type())), fc2_bias->data, counts,
                            &*fc2_bias);
}

}  // namespace pharos::nn

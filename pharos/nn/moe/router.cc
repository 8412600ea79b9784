#include "pharos/nn/moe/router.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "pharos/nn/linear.h"
#include "pharos/nn/moe/routing/balance.h"
#include "pharos/nn/moe/routing/capacity.h"
#include "pharos/nn/moe/routing/choice.h"
#include "pharos/nn/moe/routing/noise.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename Pointer>
std::int64_t as_integer(Pointer* pointer) {
  return reinterpret_cast<std::int64_t>(pointer);
}

/// x Wᵀ + b, both converted to `dtype` for the product; the input is kept in its own type.
struct RouterLogits : torch::autograd::Function<RouterLogits> {
  // weight_data is an argument of its own so that autograd sees a differentiable input even where `input` is not one.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*weight_data*/,
                            const Router* router, at::ScalarType dtype) {
    context->save_for_backward({input});
    context->saved_data["router"] = as_integer(router);
    context->saved_data["dtype"] = static_cast<std::int64_t>(dtype);
    context->saved_data["queue"] = as_integer(WeightGradientQueue::current());
    std::optional<at::Tensor> bias;
    if (router->bias) bias = lasting_value(*router->bias).to(dtype);
    return at::linear(input.to(dtype), tensor::value(router->weight).to(dtype), bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor input = context->get_saved_variables()[0].detach(), output_grad = gradients[0];
    const auto* router = reinterpret_cast<const Router*>(context->saved_data["router"].toInt());
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    run_or_queue(reinterpret_cast<WeightGradientQueue*>(context->saved_data["queue"].toInt()), [=] {
      add_weight_gradient(router->weight, input.to(dtype), output_grad);
      if (router->bias) add_bias_gradient(*router->bias, output_grad);
    });
    at::Tensor input_grad;
    if (context->needs_input_grad(0)) {
      input_grad = at::mm(output_grad, tensor::value(router->weight).to(dtype)).to(input.scalar_type());
    }
    return {input_grad, {}, {}, {}};
  }
};

/// Logits [batch, tokens, experts] of hidden [batch, tokens, width].
at::Tensor router_logits(const Router& router, at::Tensor hidden, const ForwardContext& context) {
  const RouterOptions& options = router.options;
  const TokenPlaces places = token_places(hidden.size(1), router.parallel, router.context_parallel);
  if (context.training && options.jitter.value_or(0) != 0) {
    hidden = jitter(hidden, *options.jitter, options.name, context, places);
  }
  const at::Tensor rows = hidden.reshape({-1, hidden.size(2)});
  const at::ScalarType dtype = options.dtype.value_or(hidden.scalar_type());
  at::Tensor logits = RouterLogits::apply(rows, router.weight.data, &router, dtype)
                          .view({hidden.size(0), hidden.size(1), options.num_experts});
  if (options.force_balance) logits = random_logits(logits, options.name, context, places);
  if (options.force_biased) logits = biased_logits(logits, *options.force_biased, options.name, context);
  return logits;
}

void add_to(at::Tensor& sum, const at::Tensor& summand) { sum = sum.defined() ? sum + summand : summand; }

}  // namespace

Routing Router::route(const at::Tensor& hidden, const ForwardContext& context, RouterLoad& load) const {
  const std::int64_t batch = hidden.size(0);
  const at::Tensor logits = router_logits(*this, hidden, context).flatten(0, 1);
  const bool by_sinkhorn = std::any_of(options.balancing.begin(), options.balancing.end(),
                                       [](const auto& entry) { return entry.type == "sinkhorn"; });
  const bool balances = context.training && has_auxiliary_loss(options, true);
  const bool chooses_by_score = options.score_function != config::RouterScoreFunction::kSoftmax || options.pre_softmax;
  at::Tensor scores;
  if (balances || (chooses_by_score && !by_sinkhorn)) scores = expert_scores(logits, options.score_function);

  Routing routing =
      by_sinkhorn ? choose_by_sinkhorn(logits, options.topk, context.training, tokens_group)
                  : choose_experts(logits, scores, expert_bias ? lasting_value(*expert_bias) : at::Tensor(), options);
  const at::Tensor chosen = routing.experts;
  at::Tensor dropped;
  if (options.capacity_factor) {
    routing.capacity = expert_capacity(logits.size(0), options.topk, options.num_experts, *options.capacity_factor);
    dropped =
        beyond_capacity(chosen, routing.probabilities, options.num_experts, *routing.capacity, options.drop_policy);
    routing.experts = chosen.masked_fill(dropped, -1);
    routing.probabilities = routing.probabilities.masked_fill(dropped, 0);
  }
  if (!context.training) return routing;

  if (has_auxiliary_loss(options, false)) {
    BalanceInput input{logits, {}, chosen, batch, context.first_sample};
    if (balances) {
      input.scores = balanced_scores(scores, options.score_function);
      const bool is_plain = !by_sinkhorn && !options.group_topk && !expert_bias;
      if (!is_plain) input.experts = top_experts(scores, options.topk);
    }
    const at::Tensor loss = auxiliary_loss(*this, input, load);
    const double tokens = static_cast<double>(logits.size(0) * (tokens_group == nullptr ? 1 : tokens_group->size()));
    routing.probabilities = attach_loss(
        routing.probabilities, loss, context.auxiliary_loss_scale * (options.calculates_per_token_loss ? tokens : 1));
  }
  if (!is_recomputing()) {
    add_to(load.tokens_per_expert, count_choices(chosen, options.num_experts, 1).squeeze(0));
    if (dropped.defined()) add_to(load.dropped, dropped.sum().to(at::kDouble));
    load.num_tokens += logits.size(0);
    ++load.num_microbatches;
  }
  return routing;
}

void update_expert_bias(tensor::Parameter& expert_bias, const at::Tensor& tokens_per_expert, double rate) {
  const at::NoGradGuard no_grad;
  const at::Tensor counts = tokens_per_expert.to(expert_bias.data.device(), at::kDouble);
  expert_bias.data.add_((counts.mean() - counts).sign().to(expert_bias.data.scalar_type()), rate);
}

}  // namespace pharos::nn

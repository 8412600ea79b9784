#include "pharos/nn/moe/routing/balance.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>

#include "pharos/base/error.h"
#include "pharos/nn/recompute.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AttachLoss : torch::autograd::Function<AttachLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& carrier, const at::Tensor& /*loss*/,
                            double scale) {
    context->saved_data["scale"] = scale;
    return carrier;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const double scale = context->saved_data["scale"].toDouble();
    return {gradients[0], at::full({}, scale, gradients[0].options().dtype(at::kDouble)), {}};
  }
};

/// Summed over the group, in place.
const at::Tensor& summed(const at::Tensor& counts, comm::Group* group) {
  if (group != nullptr) group->all_reduce(counts, comm::ReduceOp::kSum, {"expert counts"}).wait();
  return counts;
}

/// g of global_aux_loss: [1, experts]. Microbatches after this one do not change what its recomputation finds.
at::Tensor global_counts(const Router& router, const at::Tensor& counts, std::int64_t sample, RouterLoad& load) {
  if (!is_recomputing()) {
    const at::Tensor all = summed(counts.sum(0, true), router.balance_group);
    load.global_counts = load.global_counts.defined() ? load.global_counts + all : all;
    load.global_mean_counts[sample] = load.global_counts / ++load.num_global_counts;
  }
  const auto found = load.global_mean_counts.find(sample);
  PHAROS_CHECK(found != load.global_mean_counts.end(), "sample " + std::to_string(sample) + " has not been counted");
  return found->second;
}

}  // namespace

at::Tensor balanced_scores(const at::Tensor& scores, config::RouterScoreFunction function) {
  if (function == config::RouterScoreFunction::kSoftmax) return scores;
  return scores / (scores.sum(-1, true) + 1e-20);
}

at::Tensor count_choices(const at::Tensor& experts, std::int64_t num_experts, std::int64_t batch) {
  const at::Tensor rows = experts.reshape({batch, experts.numel() / std::max<std::int64_t>(batch, 1)});
  const at::Tensor ones = at::ones({}, rows.options().dtype(at::kDouble)).expand(rows.sizes());
  return at::zeros({batch, num_experts}, ones.options()).scatter_add_(1, rows, ones);
}

at::Tensor balance_loss(const at::Tensor& score_sums, const at::Tensor& counts, double coeff, std::int64_t topk,
                        double tokens, double counted) {
  const double factor = coeff * static_cast<double>(counts.size(1)) / (static_cast<double>(topk) * tokens * counted);
  return (score_sums * (counts * factor)).sum();
}

at::Tensor z_loss(const at::Tensor& logits, double coeff, double tokens) {
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  return at::logsumexp(wide, {-1}).square().sum(at::kDouble) * (coeff / tokens);
}

at::Tensor attach_loss(const at::Tensor& carrier, const at::Tensor& loss, double scale) {
  return AttachLoss::apply(carrier, loss, scale);
}

bool has_auxiliary_loss(const RouterOptions& options, bool with_scores) {
  const auto& balancing = options.balancing;
  return (!with_scores && options.z_loss_coeff.value_or(0) != 0) ||
         std::any_of(balancing.begin(), balancing.end(), [](const auto& entry) { return entry.coeff != 0; });
}

at::Tensor auxiliary_loss(const Router& router, const BalanceInput& input, RouterLoad& load) {
  const RouterOptions& options = router.options;
  const auto size_of = [](comm::Group* group) { return static_cast<double>(group == nullptr ? 1 : group->size()); };
  // No tokens give no loss, not 0 / 0.
  const double local = static_cast<double>(std::max<std::int64_t>(input.logits.size(0), 1));
  const double tokens = local * size_of(router.tokens_group);
  at::Tensor total;
  const auto add = [&](const std::string& type, const at::Tensor& loss) {
    total = total.defined() ? total + loss : loss;
    if (is_recomputing()) return;
    at::Tensor& sum = load.losses[type];
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  };
  if (options.z_loss_coeff.value_or(0) != 0) add("z_loss", z_loss(input.logits, *options.z_loss_coeff, tokens));
  if (!has_auxiliary_loss(options, true)) return total;

  const auto batch = static_cast<double>(input.batch);
  const at::Tensor counts = count_choices(input.experts, options.num_experts, input.batch);
  const at::Tensor sums = input.scores.reshape({input.batch, -1, options.num_experts}).sum(1).to(at::kDouble);
  for (const RouterOptions::Balancing& entry : options.balancing) {
    if (entry.coeff == 0) continue;
    at::Tensor loss;
    if (entry.type == "aux_loss") {
      const at::Tensor all = summed(counts.sum(0, true), router.tokens_group);
      loss = balance_loss(sums.sum(0, true), all, entry.coeff, options.topk, tokens, tokens);
    } else if (entry.type == "seq_aux_loss") {
      const at::Tensor all = summed(counts.clone(), router.tokens_group);
      loss = balance_loss(sums, all, entry.coeff / batch, options.topk, tokens / batch, tokens / batch);
    } else {
      PHAROS_CHECK(entry.type == "global_aux_loss", "balancing of type " + entry.type);
      const at::Tensor all = global_counts(router, counts, input.sample, load);
      loss = balance_loss(sums.sum(0, true), all, entry.coeff, options.topk, tokens,
                          local * size_of(router.balance_group));
    }
    add(entry.type, loss);
  }
  return total;
}

}  // namespace pharos::nn

#include "pharos/nn/moe/routing/choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "pharos/base/error.h"

namespace pharos::nn {
namespace {

using config::RouterGroupScore;
using config::RouterScoreFunction;

at::Tensor widened(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

/// How many of a group's best scores make up its own.
std::int64_t scores_of_group(const RouterOptions& options) {
  switch (options.group_score) {
    case RouterGroupScore::kSumOfTopk:
      return options.topk / *options.group_topk;
    case RouterGroupScore::kMaximum:
      return 1;
    case RouterGroupScore::kSumOfTwo:
      return 2;
  }
  return 1;
}

void check_groups(const RouterOptions& options, std::int64_t taken) {
  const std::int64_t groups = *options.num_groups, width = options.num_experts / groups;
  PHAROS_CHECK(options.num_experts % groups == 0 && *options.group_topk <= groups && taken >= 1 && taken <= width &&
                   *options.group_topk * width >= options.topk,
               std::to_string(options.num_experts) + " experts in " + std::to_string(groups) + " groups, " +
                   std::to_string(*options.group_topk) + " of them for topk " + std::to_string(options.topk));
}

/// The chosen scores, made into weights.
at::Tensor normalised(const at::Tensor& chosen, const RouterOptions& options) {
  const bool is_softmax = options.score_function == RouterScoreFunction::kSoftmax;
  if (!options.norm_topk_prob.value_or(!is_softmax && options.topk > 1)) return chosen;
  const at::Tensor sum = chosen.sum(-1, true);
  return chosen / (is_softmax ? sum : sum + 1e-20);
}

/// Keeps the best `topk` of each row in order while it goes through the row: for a few out of some dozens two to three
/// times as fast as at::topk, and equal scores have a rule.
template <typename Score>
void choose_largest(const Score* scores, std::int64_t* experts, std::int64_t rows, std::int64_t width,
                    std::int64_t topk) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 16384 / width), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Score> best(topk);
    for (std::int64_t row = begin; row < end; ++row) {
      const Score* score = scores + row * width;
      std::int64_t* index = experts + row * topk;
      for (std::int64_t e = 0, kept = 0; e < width; ++e) {
        if (kept == topk && !(score[e] > best[topk - 1])) continue;
        std::int64_t place = kept < topk ? kept++ : topk - 1;
        for (; place > 0 && score[e] > best[place - 1]; --place) {
          best[place] = best[place - 1];
          index[place] = index[place - 1];
        }
        best[place] = score[e];
        index[place] = e;
      }
    }
  });
}

}  // namespace

at::Tensor expert_scores(const at::Tensor& logits, RouterScoreFunction function) {
  const at::Tensor wide = widened(logits);
  switch (function) {
    case RouterScoreFunction::kSoftmax:
      return at::softmax(wide, -1);
    case RouterScoreFunction::kSigmoid:
      return at::sigmoid(wide);
    case RouterScoreFunction::kSqrtSoftplus:
      // Where softplus underflows, the derivative of its root is infinite; there it is taken as constant.
      return at::softplus(wide).clamp_min(std::numeric_limits<float>::min()).sqrt();
  }
  return {};
}

at::Tensor top_experts(const at::Tensor& scores, std::int64_t topk) {
  PHAROS_CHECK(topk >= 1 && topk <= scores.size(-1), std::to_string(topk) + " of " + std::to_string(scores.size(-1)));
  const at::ScalarType type = scores.scalar_type();
  if (!scores.is_cpu() || (type != at::kFloat && type != at::kDouble)) {
    return std::get<1>(at::topk(scores.detach(), topk, -1));
  }
  const at::Tensor rows = scores.detach().contiguous();
  const at::Tensor experts = at::empty({rows.size(0), topk}, rows.options().dtype(at::kLong));
  auto* out = experts.mutable_data_ptr<std::int64_t>();
  if (type == at::kFloat) {
    choose_largest(rows.const_data_ptr<float>(), out, rows.size(0), rows.size(1), topk);
  } else {
    choose_largest(rows.const_data_ptr<double>(), out, rows.size(0), rows.size(1), topk);
  }
  return experts;
}

at::Tensor limit_to_groups(const at::Tensor& scores, const RouterOptions& options) {
  const std::int64_t taken = scores_of_group(options), width = options.num_experts / *options.num_groups;
  check_groups(options, taken);
  const at::Tensor grouped = scores.unflatten(-1, {*options.num_groups, width});
  const at::Tensor group_scores = std::get<0>(at::topk(grouped, taken, -1)).sum(-1);
  const at::Tensor allowed =
      at::zeros_like(group_scores, at::kBool).scatter_(-1, top_experts(group_scores, *options.group_topk), true);
  return grouped.masked_fill(~allowed.unsqueeze(-1), -std::numeric_limits<double>::infinity()).flatten(-2);
}

Routing choose_experts(const at::Tensor& logits, const at::Tensor& scores, const at::Tensor& expert_bias,
                       const RouterOptions& options) {
  const bool softmax_of_chosen = options.score_function == RouterScoreFunction::kSoftmax && !options.pre_softmax;
  const at::Tensor source = softmax_of_chosen ? widened(logits) : scores;
  at::Tensor preference = source.detach();
  if (expert_bias.defined()) preference = preference + expert_bias;
  if (options.group_topk) preference = limit_to_groups(preference, options);

  Routing routing;
  routing.experts = top_experts(preference, options.topk);
  const at::Tensor chosen = source.gather(-1, routing.experts);
  at::Tensor weights = softmax_of_chosen ? at::softmax(chosen, -1) : normalised(chosen, options);
  if (options.scaling_factor) weights = weights * *options.scaling_factor;
  routing.probabilities = weights.to(logits.scalar_type());
  return routing;
}

at::Tensor sinkhorn(const at::Tensor& logits, comm::Group* group) {
  const at::Tensor wide = widened(logits.detach());
  // A factor on a row is undone by the row's scaling; this one keeps exp() finite.
  const at::Tensor cost = wide.size(0) == 0 ? wide : at::exp(wide - std::get<0>(wide.max(-1, true)));
  const double tokens = static_cast<double>(cost.size(0) * (group == nullptr ? 1 : group->size()));
  const double experts = static_cast<double>(cost.size(1));
  constexpr double kTolerance = 1e-4, kSmallest = 1e-8;
  at::Tensor row_factors, column_factors = at::ones({cost.size(1)}, cost.options());
  for (double change = 1; change > kTolerance;) {
    row_factors = 1 / (tokens * (at::mv(cost, column_factors) + kSmallest));
    at::Tensor column_sums = at::mv(cost.t(), row_factors);
    if (group != nullptr) group->all_reduce(column_sums, comm::ReduceOp::kSum, {"sinkhorn routing"}).wait();
    const at::Tensor next = 1 / (experts * (column_sums + kSmallest));
    change = (next - column_factors).abs().mean().item<double>();
    column_factors = next;
  }
  return cost * column_factors * row_factors.unsqueeze(1);
}

Routing choose_by_sinkhorn(const at::Tensor& logits, std::int64_t topk, bool training, comm::Group* group) {
  Routing routing;
  routing.experts = top_experts(training ? sinkhorn(logits, group) : logits, topk);
  const at::Tensor wide = widened(logits);
  const at::Tensor weights = topk == 1 ? at::sigmoid(wide) : at::softmax(wide, -1);
  routing.probabilities = weights.gather(-1, routing.experts).to(logits.scalar_type());
  return routing;
}

}  // namespace pharos::nn

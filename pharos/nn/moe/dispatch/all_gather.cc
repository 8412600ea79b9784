#include <ATen/ATen.h>

#include <algorithm>

#include "pharos/nn/moe/dispatch/exchange.h"

namespace pharos::nn::moe {
namespace {

constexpr const char* kThere = "tokens to experts";
constexpr const char* kBack = "tokens from experts";

/// `num_rows` rows that begin with those of `tensor` and go on with `value`.
at::Tensor filled_up(const at::Tensor& tensor, std::int64_t num_rows, double value) {
  if (tensor.size(0) == num_rows) return tensor.contiguous();
  auto shape = tensor.sizes().vec();
  shape[0] = num_rows;
  const auto result = at::full(shape, value, tensor.options());
  result.narrow(0, 0, tensor.size(0)).copy_(tensor);
  return result;
}

class AllGatherExchange : public Exchange {
 public:
  AllGatherExchange(const DispatchOptions& options, const ExpertParallel& parallel, const at::Tensor& experts,
                    std::optional<std::int64_t> rows_per_expert)
      : group_(*parallel.both), num_tokens_(experts.size(0)), most_tokens_(num_tokens_) {
    const std::int64_t num_local = options.num_experts / parallel.expert_size();
    const std::int64_t first = parallel.expert_rank() * num_local;
    counts_.assign(static_cast<std::size_t>(num_local), rows_per_expert.value_or(0) * group_.size());
    if (!rows_per_expert) {
      const auto own =
          at::cat({at::full({1}, num_tokens_, experts.options()), count_choices(experts, options.num_experts)});
      for (const auto& numbers : gather_numbers(group_, own)) {
        most_tokens_ = std::max(most_tokens_, numbers[0]);
        for (std::size_t e = 0; e < counts_.size(); ++e) counts_[e] += numbers[1 + static_cast<std::size_t>(first) + e];
      }
    }
    const auto all = gathered(filled_up(experts, most_tokens_, -1));
    group_.all_gather(all, filled_up(experts, most_tokens_, -1), {"choices of experts"}).wait();
    const auto is_local = all.ge(first).logical_and_(all.lt(first + num_local));
    if (rows_per_expert) {  // every source has as many rows of its own
      const auto source = at::arange(group_.size(), all.options()).view({-1, 1, 1});
      const auto bins = at::where(is_local, (all - first) * group_.size() + source, -1).flatten(0, 1);
      order_ = sort_choices(bins, num_local * group_.size(), rows_per_expert);
    } else {
      order_ = sort_choices(at::where(is_local, all - first, -1).flatten(0, 1), num_local, std::nullopt);
      shorten(order_, sum_of(counts_));
    }
  }

  Freight to_experts(const Freight& tokens, const std::function<void()>& beside) const override {
    const Freight own{filled_up(tokens.hidden, most_tokens_, 0),
                      tokens.probabilities.defined() ? filled_up(tokens.probabilities, most_tokens_, 0) : at::Tensor()};
    Freight all{gathered(own.hidden), {}};
    comm::Work hidden = group_.all_gather(all.hidden, own.hidden, {kThere}), probabilities;
    if (own.probabilities.defined()) {
      all.probabilities = gathered(own.probabilities);
      probabilities = group_.all_gather(all.probabilities, own.probabilities, {kThere});
    }
    if (beside) beside();
    hidden.wait();
    probabilities.wait();
    all.hidden = all.hidden.flatten(0, 1);
    return in_rows_of(order_, all);
  }

  Freight to_tokens(const Freight& rows) const override {
    const Freight all = in_tokens_of(order_, rows);
    return {scattered(all.hidden), all.probabilities.defined() ? scattered(all.probabilities) : at::Tensor()};
  }

 private:
  at::Tensor gathered(const at::Tensor& part) const {
    return at::empty({group_.size(), part.size(0), part.size(1)}, part.options());
  }

  at::Tensor scattered(const at::Tensor& whole) const {
    const auto part = at::empty({most_tokens_, whole.size(1)}, whole.options());
    group_.reduce_scatter(part, whole, comm::ReduceOp::kSum, {kBack}).wait();
    return part.narrow(0, 0, num_tokens_);
  }

  comm::Group& group_;
  std::int64_t num_tokens_, most_tokens_;  ///< of this rank, of the rank that has most
  Permutation order_;                      ///< of all ranks' choices, over this rank's experts
};

}  // namespace

std::unique_ptr<Exchange> exchange_by_all_gather(const DispatchOptions& options, const ExpertParallel& parallel,
                                                 const at::Tensor& experts,
                                                 std::optional<std::int64_t> rows_per_expert) {
  return std::make_unique<AllGatherExchange>(options, parallel, experts, rows_per_expert);
}

}  // namespace pharos::nn::moe

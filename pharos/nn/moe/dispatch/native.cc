// The flex dispatcher's own back-end.
#include <ATen/ATen.h>

#include "pharos/nn/moe/dispatch/exchange.h"

namespace pharos::nn::moe {
namespace {

/// For each token the ranks of ETP × EP that hold experts of its choice, else -1: int64 [tokens, ranks].
at::Tensor ranks_of(const at::Tensor& experts, const DispatchOptions& options, const ExpertParallel& parallel) {
  const std::int64_t num_local = options.num_experts / parallel.expert_size();
  const std::int64_t none = parallel.expert_size();
  const auto owners = at::where(experts.ge(0), experts.div(num_local, "floor"), none);
  const auto is_wanted =
      at::zeros({experts.size(0), none + 1}, experts.options().dtype(at::kBool)).scatter_(1, owners, true);
  const auto ranks = at::arange(parallel.both->size(), experts.options());
  const auto wanted = is_wanted.narrow(1, 0, none).repeat_interleave(parallel.tensor_size(), 1);
  return at::where(wanted, ranks, -1);
}

class NativeExchange : public Exchange {
 public:
  NativeExchange(const DispatchOptions& options, const ExpertParallel& parallel, const at::Tensor& experts,
                 std::optional<std::int64_t> rows_per_expert)
      : group_(*parallel.both),
        topk_(experts.size(1)),
        by_rank_(sort_choices(ranks_of(experts, options, parallel), group_.size(), std::nullopt)) {
    const std::int64_t num_ranks = group_.size(), num_local = options.num_experts / parallel.expert_size();
    const std::int64_t first = parallel.expert_rank() * num_local;
    const auto numbers =
        gather_numbers(group_, at::cat({by_rank_.counts, count_choices(experts, options.num_experts)}));
    const auto& own = numbers[static_cast<std::size_t>(group_.rank())];
    sent_rows_.assign(own.begin(), own.begin() + num_ranks);
    counts_.assign(static_cast<std::size_t>(num_local), rows_per_expert.value_or(0) * num_ranks);
    for (const auto& source : numbers) {
      arrived_rows_.push_back(source[static_cast<std::size_t>(group_.rank())]);
      for (std::size_t e = 0; e < counts_.size() && !rows_per_expert; ++e) {
        counts_[e] += source[static_cast<std::size_t>(num_ranks + first) + e];
      }
    }
    shorten(by_rank_, sum_of(sent_rows_));
    const auto arrived = at::empty({sum_of(arrived_rows_), topk_}, experts.options());
    group_.all_to_all(arrived, take_rows(experts, by_rank_.tokens), arrived_rows_, sent_rows_, {"choices of experts"})
        .wait();
    const auto is_local = arrived.ge(first).logical_and_(arrived.lt(first + num_local));
    if (rows_per_expert) {  // every source has as many rows of its own
      const auto sources = at::repeat_interleave(at::arange(num_ranks, experts.options()),
                                                 at::tensor(arrived_rows_).to(experts.device()), 0, arrived.size(0));
      const auto bins = at::where(is_local, (arrived - first) * num_ranks + sources.unsqueeze(1), -1);
      by_expert_ = sort_choices(bins, num_local * num_ranks, rows_per_expert);
    } else {
      by_expert_ = sort_choices(at::where(is_local, arrived - first, -1), num_local, std::nullopt);
      shorten(by_expert_, sum_of(counts_));
    }
  }

  Freight to_experts(const Freight& tokens, const std::function<void()>& beside) const override {
    Freight sent{take_rows(tokens.hidden, by_rank_.tokens), {}};
    if (tokens.probabilities.defined()) sent.probabilities = take_rows(tokens.probabilities, by_rank_.tokens);
    const Freight arrived = room_like(sent, sum_of(arrived_rows_));
    Journey journey(&group_, arrived, sent, arrived_rows_, sent_rows_, "tokens to experts");
    if (beside) beside();
    journey.wait();
    return in_rows_of(by_expert_, arrived);
  }

  Freight to_tokens(const Freight& rows) const override {
    const Freight sent = in_tokens_of(by_expert_, rows);
    const Freight back = room_like(sent, sum_of(sent_rows_));
    Journey(&group_, back, sent, sent_rows_, arrived_rows_, "tokens from experts").wait();
    return {sum_rows(back.hidden, by_rank_.rows),
            back.probabilities.defined() ? sum_rows(back.probabilities, by_rank_.rows) : at::Tensor()};
  }

 private:
  static Freight room_like(const Freight& freight, std::int64_t num_rows) {
    const auto room = [&](const at::Tensor& tensor) {
      return tensor.defined() ? at::empty({num_rows, tensor.size(1)}, tensor.options()) : at::Tensor();
    };
    return {room(freight.hidden), room(freight.probabilities)};
  }

  comm::Group& group_;
  std::int64_t topk_;
  Permutation by_rank_;                                 ///< of this rank's tokens, over ranks
  Permutation by_expert_;                               ///< of tokens that came, over this rank's experts
  std::vector<std::int64_t> sent_rows_, arrived_rows_;  ///< by rank
};

}  // namespace

std::unique_ptr<Exchange> exchange_natively(const DispatchOptions& options, const ExpertParallel& parallel,
                                            const at::Tensor& experts, std::optional<std::int64_t> rows_per_expert) {
  return std::make_unique<NativeExchange>(options, parallel, experts, rows_per_expert);
}

}  // namespace pharos::nn::moe

#include <ATen/ATen.h>

#include <algorithm>

#include "pharos/nn/moe/dispatch/exchange.h"

namespace pharos::nn::moe {
namespace {

constexpr const char* kThere = "tokens to experts";
constexpr const char* kBack = "tokens from experts";

/// Freight of `num_parts` equal parts of `num_rows` rows.
Freight room_like(const Freight& freight, std::int64_t num_parts, std::int64_t num_rows) {
  Freight room{at::empty({num_parts, num_rows, freight.hidden.size(1)}, freight.hidden.options()), {}};
  if (freight.probabilities.defined()) {
    room.probabilities = at::empty({num_parts, num_rows}, freight.probabilities.options());
  }
  return room;
}

/// The first `num_rows` of part `index`.
Freight part_of(const Freight& room, std::int64_t index, std::int64_t num_rows) {
  const auto part = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.select(0, index).narrow(0, 0, num_rows) : at::Tensor();
  };
  return {part(room.hidden), part(room.probabilities)};
}

/// Between permuting and experts rows lie in a room [ETP, length of the longest, …]: part t holds what ETP rank t got
/// by its all-to-all, by source and then by expert. Equal parts make the transfers over ETP plain all-gathers and
/// reduce-scatters, and to skip what fills them up costs nothing where rows are sorted anyway.
class AllToAllExchange : public Exchange {
 public:
  AllToAllExchange(const DispatchOptions& options, const ExpertParallel& parallel, const at::Tensor& experts,
                   std::optional<std::int64_t> rows_per_expert)
      : parallel_(parallel), order_(sort_choices(experts, options.num_experts, rows_per_expert)) {
    const std::int64_t num_ranks = parallel.both->size();
    std::vector<std::vector<std::int64_t>> counts;
    if (rows_per_expert) {
      counts.assign(static_cast<std::size_t>(num_ranks),
                    std::vector<std::int64_t>(static_cast<std::size_t>(options.num_experts), *rows_per_expert));
    } else {
      counts = gather_numbers(*parallel.both, order_.counts);
    }
    plan(counts, options.num_experts / parallel.expert_size());
    if (!rows_per_expert) shorten(order_, sum_of(sent_rows_));
    sorted_ = sorted_.to(experts.device());
    places_ = places_.to(experts.device());
  }

  Freight to_experts(const Freight& tokens, const std::function<void()>& beside) const override {
    const Freight sent = in_rows_of(order_, tokens);
    const Freight room = room_like(sent, parallel_.tensor_size(), longest_);
    Journey journey(parallel_.expert, part_of(room, tensor_rank(), sum_of(arrived_rows_)), sent, arrived_rows_,
                    sent_rows_, kThere);
    if (beside) beside();
    journey.wait();
    if (parallel_.tensor_size() > 1) {
      gather(room.hidden);
      if (room.probabilities.defined()) gather(room.probabilities);
    }
    const auto sort = [&](const at::Tensor& tensor) {
      return tensor.defined() ? take_rows(tensor.flatten(0, 1), sorted_) : at::Tensor();
    };
    if (is_sorted_) return part_of(room, 0, longest_);
    return {sort(room.hidden), sort(room.probabilities)};
  }

  Freight to_tokens(const Freight& rows) const override {
    const Freight sent{scattered(rows.hidden), scattered(rows.probabilities)};
    Freight back = room_like(sent, 1, order_.tokens.size(0));
    back = part_of(back, 0, order_.tokens.size(0));
    Journey(parallel_.expert, back, sent, sent_rows_, arrived_rows_, kBack).wait();
    return in_tokens_of(order_, back);
  }

 private:
  std::int64_t tensor_rank() const { return parallel_.tensor_size() == 1 ? 0 : parallel_.expert_tensor->rank(); }

  /// counts[r][e]: rows that rank r of ETP × EP has for expert e.
  void plan(const std::vector<std::vector<std::int64_t>>& counts, std::int64_t num_local) {
    const std::int64_t tensor_size = parallel_.tensor_size(), expert_size = parallel_.expert_size();
    const std::int64_t first = parallel_.expert_rank() * num_local;
    const auto count = [&](std::int64_t source, std::int64_t tensor, std::int64_t expert) {
      return counts[static_cast<std::size_t>(source * tensor_size + tensor)][static_cast<std::size_t>(expert)];
    };
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(tensor_size));
    std::vector<std::vector<std::int64_t>> starts(static_cast<std::size_t>(tensor_size));  // [ETP][source, expert]
    for (std::int64_t rank = 0; rank < expert_size; ++rank) {
      std::int64_t sent = 0;
      for (std::int64_t e = 0; e < num_local; ++e) {
        sent += count(parallel_.expert_rank(), tensor_rank(), rank * num_local + e);
      }
      sent_rows_.push_back(sent);
      for (std::int64_t tensor = 0; tensor < tensor_size; ++tensor) {
        auto& length = lengths[static_cast<std::size_t>(tensor)];
        const std::int64_t before = length;
        for (std::int64_t e = 0; e < num_local; ++e) {
          starts[static_cast<std::size_t>(tensor)].push_back(length);
          length += count(rank, tensor, first + e);
        }
        if (tensor == tensor_rank()) arrived_rows_.push_back(length - before);
      }
    }
    longest_ = *std::max_element(lengths.begin(), lengths.end());
    is_sorted_ = tensor_size == 1 && (num_local == 1 || expert_size == 1);
    sorted_ = at::empty({sum_of(lengths)}, at::kLong);
    places_ = at::full({tensor_size * longest_}, -1, at::kLong);
    auto* sorted = sorted_.mutable_data_ptr<std::int64_t>();
    auto* places = places_.mutable_data_ptr<std::int64_t>();
    std::int64_t row = 0;
    for (std::int64_t e = 0; e < num_local; ++e) {
      const std::int64_t before = row;
      for (std::int64_t rank = 0; rank < expert_size; ++rank) {
        for (std::int64_t tensor = 0; tensor < tensor_size; ++tensor) {
          const std::int64_t start =
              tensor * longest_ +
              starts[static_cast<std::size_t>(tensor)][static_cast<std::size_t>(rank * num_local + e)];
          for (std::int64_t i = 0; i < count(rank, tensor, first + e); ++i, ++row) {
            sorted[row] = start + i;
            places[start + i] = row;
          }
        }
      }
      counts_.push_back(row - before);
    }
  }

  void gather(const at::Tensor& room) const {
    parallel_.expert_tensor->all_gather(room, room.select(0, tensor_rank()), {kThere}).wait();
  }

  /// What this rank's all-to-all brought, summed over ETP: from the order of experts to that of sources.
  at::Tensor scattered(const at::Tensor& rows) const {
    if (!rows.defined() || is_sorted_) return rows;
    const auto room = take_rows(rows, places_);
    if (parallel_.tensor_size() == 1) return room;
    auto shape = room.sizes().vec();
    shape[0] = longest_;
    const auto sum = at::empty(shape, room.options());
    parallel_.expert_tensor->reduce_scatter(sum, room, comm::ReduceOp::kSum, {kBack}).wait();
    return sum.narrow(0, 0, sum_of(arrived_rows_));
  }

  ExpertParallel parallel_;
  Permutation order_;                                   ///< of this rank's choices, over all experts
  std::vector<std::int64_t> sent_rows_, arrived_rows_;  ///< by expert-parallel rank
  std::int64_t longest_ = 0;                            ///< rows of a part of the room
  bool is_sorted_ = false;                              ///< the room is in the order of experts
  at::Tensor sorted_;                                   ///< place in the room of each row before experts
  at::Tensor places_;                                   ///< row before experts of each place, -1 for none
};

}  // namespace

std::unique_ptr<Exchange> exchange_by_all_to_all(const DispatchOptions& options, const ExpertParallel& parallel,
                                                 const at::Tensor& experts,
                                                 std::optional<std::int64_t> rows_per_expert) {
  return std::make_unique<AllToAllExchange>(options, parallel, experts, rows_per_expert);
}

}  // namespace pharos::nn::moe

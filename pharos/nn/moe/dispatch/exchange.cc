#include "pharos/nn/moe/dispatch/exchange.h"

#include <ATen/ATen.h>

#include <numeric>

namespace pharos::nn::moe {
namespace {

class LocalExchange : public Exchange {
 public:
  LocalExchange(const at::Tensor& experts, std::int64_t num_experts, std::optional<std::int64_t> rows_per_expert)
      : order_(sort_choices(experts, num_experts, rows_per_expert)) {
    if (rows_per_expert) {
      counts_.assign(static_cast<std::size_t>(num_experts), *rows_per_expert);
    } else {
      counts_ = numbers_of(order_.counts);
      shorten(order_, sum_of(counts_));
    }
  }

  Freight to_experts(const Freight& tokens, const std::function<void()>& beside) const override {
    if (beside) beside();
    return in_rows_of(order_, tokens);
  }

  Freight to_tokens(const Freight& rows) const override { return in_tokens_of(order_, rows); }

 private:
  Permutation order_;
};

}  // namespace

std::unique_ptr<Exchange> exchange_locally(const DispatchOptions& options, const ExpertParallel&,
                                           const at::Tensor& experts, std::optional<std::int64_t> rows_per_expert) {
  return std::make_unique<LocalExchange>(experts, options.num_experts, rows_per_expert);
}

Freight in_rows_of(const Permutation& order, const Freight& tokens) {
  Freight rows{take_rows(tokens.hidden, order.tokens), {}};
  if (tokens.probabilities.defined()) {
    rows.probabilities = take_rows(tokens.probabilities.reshape(-1), order.choices);
  }
  return rows;
}

Freight in_tokens_of(const Permutation& order, const Freight& rows) {
  Freight tokens{sum_rows(rows.hidden, order.rows), {}};
  if (rows.probabilities.defined()) {
    tokens.probabilities = take_rows(rows.probabilities, order.rows.view(-1)).view(order.rows.sizes());
  }
  return tokens;
}

void shorten(Permutation& order, std::int64_t num_rows) {
  order.tokens = order.tokens.narrow(0, 0, num_rows);
  order.choices = order.choices.narrow(0, 0, num_rows);
}

std::vector<std::vector<std::int64_t>> gather_numbers(comm::Group& group, const at::Tensor& values) {
  const auto own = values.contiguous();
  const auto all = at::empty({group.size(), own.numel()}, own.options());
  group.all_gather(all, own, {"numbers of rows"}).wait();
  const auto on_host = all.cpu();
  std::vector<std::vector<std::int64_t>> numbers;
  for (std::int64_t rank = 0; rank < group.size(); ++rank) numbers.push_back(numbers_of(on_host[rank]));
  return numbers;
}

std::vector<std::int64_t> numbers_of(const at::Tensor& values) {
  const auto on_host = values.cpu().contiguous();
  const auto* data = on_host.const_data_ptr<std::int64_t>();
  return {data, data + on_host.numel()};
}

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

Journey::Journey(comm::Group* group, const Freight& arrived, const Freight& sent,
                 const std::vector<std::int64_t>& arrived_rows, const std::vector<std::int64_t>& sent_rows,
                 const char* what)
    : arrived_(arrived), sent_{sent.hidden.contiguous(), {}} {
  if (group == nullptr) {
    arrived_.hidden.copy_(sent_.hidden);
    if (sent.probabilities.defined()) arrived_.probabilities.copy_(sent.probabilities);
    return;
  }
  hidden_ = group->all_to_all(arrived_.hidden, sent_.hidden, arrived_rows, sent_rows, {what});
  if (!sent.probabilities.defined()) return;
  sent_.probabilities = sent.probabilities.contiguous();
  probabilities_ = group->all_to_all(arrived_.probabilities, sent_.probabilities, arrived_rows, sent_rows, {what});
}

void Journey::wait() {
  hidden_.wait();
  probabilities_.wait();
}

}  // namespace pharos::nn::moe

// The way of one microbatch's tokens to the ranks and rows of their experts, and back: what dispatchers differ in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "pharos/nn/moe/dispatch/permutation.h"
#include "pharos/nn/moe/dispatcher.h"

namespace pharos::nn::moe {

/// Hidden states and what belongs to each of them; `probabilities` may be undefined where nobody wants them.
struct Freight {
  at::Tensor hidden;         ///< before experts: [rows, hidden]; of tokens: [tokens, hidden]
  at::Tensor probabilities;  ///< before experts: [rows]; of tokens: [tokens, topk]
};

/// Two linear maps, each the transpose of the other: so the gradient of one is the other, and these two are all of
/// forward and backward. They know no autograd. Every member of the groups calls them in the same order.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Copies tokens to the rows of the experts they chose. `beside` (may be empty) is called once, while they travel.
  virtual Freight to_experts(const Freight& tokens, const std::function<void()>& beside) const = 0;
  /// Sums for each token what stands in its rows, over expert-tensor-parallel ranks too.
  virtual Freight to_tokens(const Freight& rows) const = 0;
  /// Rows of each local expert.
  const std::vector<std::int64_t>& counts() const { return counts_; }

 protected:
  std::vector<std::int64_t> counts_;
};

/// Makes the exchange of a microbatch, which may take communication. See Dispatcher::run for `rows_per_expert`.
/// A back-end of the flex dispatcher is one more such function.
using ExchangeFunction = std::unique_ptr<Exchange> (*)(const DispatchOptions& options, const ExpertParallel& parallel,
                                                       const at::Tensor& experts,
                                                       std::optional<std::int64_t> rows_per_expert);

/// One rank: nothing travels.
std::unique_ptr<Exchange> exchange_locally(const DispatchOptions& options, const ExpertParallel& parallel,
                                           const at::Tensor& experts, std::optional<std::int64_t> rows_per_expert);

/// Every rank of ETP × EP gets every token, and sums travel back. With `rows_per_expert` all ranks must have as many
/// tokens.
std::unique_ptr<Exchange> exchange_by_all_gather(const DispatchOptions& options, const ExpertParallel& parallel,
                                                 const at::Tensor& experts,
                                                 std::optional<std::int64_t> rows_per_expert);

/// Rows travel to the expert-parallel rank of their expert, are gathered over the expert-tensor-parallel ones, and come
/// back the same way.
std::unique_ptr<Exchange> exchange_by_all_to_all(const DispatchOptions& options, const ExpertParallel& parallel,
                                                 const at::Tensor& experts,
                                                 std::optional<std::int64_t> rows_per_expert);

/// A token travels once to each rank of ETP × EP that holds experts of its choice, is copied to their rows there, and
/// one sum of them comes back.
std::unique_ptr<Exchange> exchange_natively(const DispatchOptions& options, const ExpertParallel& parallel,
                                            const at::Tensor& experts, std::optional<std::int64_t> rows_per_expert);

// Parts that exchanges are made of.

/// Freight of tokens in the rows of `order`, and the sums of rows for tokens.
Freight in_rows_of(const Permutation& order, const Freight& tokens);
Freight in_tokens_of(const Permutation& order, const Freight& rows);

/// Drops what follows the first `num_rows`.
void shorten(Permutation& order, std::int64_t num_rows);

/// Numbers of all members of `group`: [ranks][numbers]. values: int64 [numbers]. Waits for them (the one time a device
/// is waited for).
std::vector<std::vector<std::int64_t>> gather_numbers(comm::Group& group, const at::Tensor& values);

std::vector<std::int64_t> numbers_of(const at::Tensor& values);

std::int64_t sum_of(const std::vector<std::int64_t>& values);

/// An all-to-all of freight under way: rows of all pairs of ranks, see comm::Group::all_to_all.
class Journey {
 public:
  /// `arrived` has room for what comes. `group`: null for this rank alone.
  Journey(comm::Group* group, const Freight& arrived, const Freight& sent,
          const std::vector<std::int64_t>& arrived_rows, const std::vector<std::int64_t>& sent_rows, const char* what);
  void wait();

 private:
  Freight arrived_, sent_;
  comm::Work hidden_, probabilities_;  // the last members: they end before their buffers do
};

}  // namespace pharos::nn::moe

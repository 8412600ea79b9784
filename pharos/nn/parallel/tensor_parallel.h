// Tensor parallelism (Shoeybi et al. 2019) and sequence parallelism (Korthikanti et al. 2022): how a layer is divided
// over ranks, and tokens on their way between them. Hidden states are [batch, tokens, width]; sequence parallelism
// gives each rank an equal, contiguous part of the tokens wherever a layer needs one token at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "pharos/comm/group.h"
#include "pharos/nn/context.h"
#include "pharos/nn/context_parallel/context_parallel.h"

namespace pharos::nn {

/// Without a group, or in a group of one, layers are whole.
struct TensorParallel {
  comm::Group* group = nullptr;
  bool sequence = false;  ///< between row- and column-parallel layers each rank holds its part of the tokens

  std::int64_t size() const { return group == nullptr ? 1 : group->size(); }
  std::int64_t rank() const { return group == nullptr ? 0 : group->rank(); }
  bool is_split() const { return size() > 1; }
  bool splits_tokens() const { return sequence && is_split(); }
};

/// An all-gather along the tokens under way. `parallel` must split tokens.
class TokenGather {
 public:
  /// part: [batch, tokens / size, width] of this rank.
  TokenGather(const at::Tensor& part, const TensorParallel& parallel, const char* what);
  /// [batch, tokens, width] of all ranks, in order. To be called once.
  at::Tensor wait();

 private:
  at::Tensor part_, gathered_;  // [size, batch, tokens / size, width]
  comm::Work work_;             // the last member: it ends before its buffers do
};

/// A reduce-scatter (sum) along the tokens under way. `parallel` must split tokens.
class TokenScatter {
 public:
  /// whole: [batch, tokens, width], this rank's summand. InternalError when the tokens do not divide by the group.
  TokenScatter(const at::Tensor& whole, const TensorParallel& parallel, const char* what);
  /// [batch, tokens / size, width]: this rank's part of the sum. To be called once.
  at::Tensor wait();

 private:
  at::Tensor whole_, part_;
  comm::Work work_;
};

/// The sum over the group of a tensor that every rank has in full: all of it, or this rank's part of the tokens.
/// summand: [batch, tokens, width]; may be overwritten.
at::Tensor reduce_output(const at::Tensor& summand, const TensorParallel& parallel, const char* what);

/// dropout() of this rank's tokens [batch, tokens, width]: the same mask however they are divided.
at::Tensor dropout_of_tokens(const at::Tensor& input, double probability, std::string_view name,
                             const ForwardContext& context, const TensorParallel& parallel,
                             const ContextParallel& context_parallel = {});

}  // namespace pharos::nn

#include "pharos/nn/parallel/tensor_parallel.h"

#include <ATen/ATen.h>

#include <utility>

#include "pharos/base/error.h"
#include "pharos/nn/context_parallel/zigzag.h"

namespace pharos::nn {

namespace {

at::Tensor room_for_all(const at::Tensor& part, std::int64_t size) {
  PHAROS_CHECK(part.dim() == 3, "[batch, tokens, width] wanted");
  return at::empty({size, part.size(0), part.size(1), part.size(2)}, part.options());
}

/// [size, batch, tokens / size, width], contiguous; a copy only when there are several sequences.
at::Tensor by_rank(const at::Tensor& whole, std::int64_t size) {
  PHAROS_CHECK(whole.dim() == 3 && whole.size(1) % size == 0,
               std::to_string(whole.size(1)) + " tokens do not divide by " + std::to_string(size) + " ranks");
  return whole.detach().unflatten(1, {size, whole.size(1) / size}).transpose(0, 1).contiguous();
}

}  // namespace

TokenGather::TokenGather(const at::Tensor& part, const TensorParallel& parallel, const char* what)
    : part_(part.detach().contiguous()),
      gathered_(room_for_all(part_, parallel.size())),
      work_(parallel.group->all_gather(gathered_, part_, {what})) {}

at::Tensor TokenGather::wait() {
  work_.wait();
  part_.reset();
  return std::exchange(gathered_, at::Tensor()).transpose(0, 1).flatten(1, 2);
}

TokenScatter::TokenScatter(const at::Tensor& whole, const TensorParallel& parallel, const char* what)
    : whole_(by_rank(whole, parallel.size())),
      part_(at::empty_like(whole_.select(0, 0), at::MemoryFormat::Contiguous)),
      work_(parallel.group->reduce_scatter(part_, whole_, comm::ReduceOp::kSum, {what})) {}

at::Tensor TokenScatter::wait() {
  work_.wait();
  whole_.reset();
  return std::exchange(part_, at::Tensor());
}

at::Tensor reduce_output(const at::Tensor& summand, const TensorParallel& parallel, const char* what) {
  if (parallel.splits_tokens()) return TokenScatter(summand, parallel, what).wait();
  const at::Tensor sum = summand.contiguous();
  parallel.group->all_reduce(sum, comm::ReduceOp::kSum, {what}).wait();
  return sum;
}

at::Tensor dropout_of_tokens(const at::Tensor& input, double probability, std::string_view name,
                             const ForwardContext& context, const TensorParallel& parallel,
                             const ContextParallel& context_parallel) {
  const std::int64_t count = input.size(1), parts = parallel.splits_tokens() ? parallel.size() : 1;
  const std::int64_t first = parallel.splits_tokens() ? count * parallel.rank() : 0;
  const std::int64_t tokens = count * parts * context_parallel.size();
  return dropout(input, probability, name, context, tokens,
                 zigzag_runs(tokens, context_parallel.rank(), context_parallel.size(), first, count));
}

}  // namespace pharos::nn

#include "pharos/nn/parallel/tensor_parallel.h"

#include <ATen/ATen.h>

#include <utility>

#include "pharos/base/error.h"

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
                             const ForwardContext& context, const TensorParallel& parallel) {
  if (!parallel.splits_tokens()) return dropout(input, probability, name, context);
  const std::int64_t tokens = input.size(1);
  return dropout(input, probability, name, context, {tokens * parallel.size(), input.size(2)},
                 {tokens * parallel.rank(), 0});
}

}  // namespace pharos::nn

#include "pharos/nn/context_parallel/context_parallel.h"

#include <ATen/ATen.h>

#include <utility>

#include "pharos/base/error.h"

namespace pharos::nn {

using Exchange = ContextParallel::Exchange;

void RingTransfer::start(const at::Tensor& block, const char* what) {
  comm::Group& group = *parallel_.group;
  const std::int64_t size = parallel_.size(), next = (parallel_.rank() + 1) % size,
                     previous = (parallel_.rank() + size - 1) % size;
  PHAROS_CHECK(!incoming_.defined(), "a block is still under way");
  incoming_ = at::empty_like(block);
  // NCCL serves the calls of a pair of ranks in order: were all to receive first, all would wait. With an odd number
  // of ranks two neighbours send first, to different ranks.
  if (parallel_.rank() % 2 == 0) {
    sent_ = group.send(block, next, {what});
    received_ = group.receive(incoming_, previous, {what});
  } else {
    received_ = group.receive(incoming_, previous, {what});
    sent_ = group.send(block, next, {what});
  }
}

at::Tensor RingTransfer::wait() {
  received_.wait();
  sent_.wait();
  return std::exchange(incoming_, at::Tensor());
}

BlockExchange::BlockExchange(const at::Tensor& own, const ContextParallel& parallel, const char* what)
    : parallel_(parallel), what_(what), current_(own), transfer_(parallel) {
  if (parallel.exchange != Exchange::kAllGather) return;
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), parallel.size());
  gathered_ = at::empty(shape, own.options());
  work_ = parallel.group->all_gather(gathered_, own, {what});
}

at::Tensor BlockExchange::take() {
  const std::int64_t step = step_++;
  if (gathered_.defined()) {
    if (step == 0) return current_;
    work_.wait();
    return gathered_[parallel_.source(step)];
  }
  if (step > 0) current_ = transfer_.wait();
  if (step + 1 < parallel_.size()) transfer_.start(current_, what_);
  return current_;
}

GradientExchange::GradientExchange(const ContextParallel& parallel, const char* what)
    : parallel_(parallel), what_(what), transfer_(parallel) {}

void GradientExchange::give(const at::Tensor& gradient) {
  const std::int64_t step = step_++;
  if (parallel_.exchange == Exchange::kAllGather) {
    if (step == 0) {
      std::vector<std::int64_t> shape = gradient.sizes().vec();
      shape.insert(shape.begin(), parallel_.size());
      gathered_ = at::empty(shape, gradient.options());
    }
    gathered_[parallel_.source(step)].copy_(gradient);
    return;
  }
  if (step == 0) {
    own_ = gradient;
    return;
  }
  // What came in is the sum so far for the same block: rank - 1 had it a step ago. The block of step 1 starts here.
  if (step > 1) gradient.add_(transfer_.wait());
  transfer_.start(gradient, what_);
}

at::Tensor GradientExchange::wait() {
  PHAROS_CHECK(step_ == parallel_.size(), "gradients of some blocks are missing");
  if (parallel_.exchange != Exchange::kAllGather) return own_.add_(transfer_.wait());
  const at::Tensor own = at::empty_like(gathered_[0]);
  parallel_.group->reduce_scatter(own, gathered_, comm::ReduceOp::kSum, {what_}).wait();
  gathered_.reset();
  return own;
}

}  // namespace pharos::nn

#include "pharos/optim/parallel/gradient_sync.h"

#include <ATen/Functions.h>

#include <utility>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

/// Uses of each parameter in `num_microbatches`, and parameters of each bucket.
void count_uses(const std::vector<tensor::Parameter*>& parameters, const FlatLayout& layout, int num_microbatches,
                std::vector<int>& uses, std::vector<std::size_t>& pending) {
  uses.clear();
  pending.clear();
  for (const tensor::Parameter* parameter : parameters) uses.push_back(parameter->num_uses * num_microbatches);
  for (const Bucket& bucket : layout.buckets) pending.push_back(bucket.parameters.size());
}

}  // namespace

BucketReducer::BucketReducer(comm::Group* group, const DataParallelOptions& options, at::ScalarType type)
    : group_(group),
      type_(options.reduce_in_fp32 || group == nullptr ? at::kFloat : type),
      scatters_(shards_states(options.strategy)) {
  if (group_ == nullptr || !options.averages) return;
  if (options.average_in_collective) {
    op_ = comm::ReduceOp::kAverage;
  } else {
    factor_ = 1.0 / static_cast<double>(group_->size());
  }
}

BucketReducer::Reduction BucketReducer::start(const at::Tensor& bucket, std::size_t index) const {
  Reduction reduction;
  reduction.buffer = bucket;
  if (is_copying()) {
    // Scaled before it is rounded: a sum of fp16 gradients could overflow.
    reduction.buffer = (factor_ == 1 ? bucket : bucket.mul_(factor_)).to(type_);
  }
  reduction.result = reduction.buffer;
  if (group_ == nullptr) return reduction;
  const comm::Purpose purpose{"gradient bucket", static_cast<std::int64_t>(index)};
  if (scatters_) {
    const std::int64_t length = bucket.numel() / group_->size();
    reduction.result = reduction.buffer.narrow(0, group_->rank() * length, length);
    reduction.work = group_->reduce_scatter(reduction.result, reduction.buffer, op_, purpose);
  } else {
    reduction.work = group_->all_reduce(reduction.buffer, op_, purpose);
  }
  return reduction;
}

FullGradientSync::FullGradientSync(std::vector<tensor::Parameter*> parameters, FlatLayout layout,
                                   const std::vector<HeldRange>& held_ranges, BucketReducer reducer, bool overlaps)
    : buffer_(std::move(parameters), std::move(layout)), reducer_(reducer), overlaps_(overlaps) {
  for (const HeldRange& range : held_ranges) held_.push_back(buffer_.flat().narrow(0, range.begin, range.length()));
}

void FullGradientSync::begin_step(int num_microbatches) {
  finish();
  buffer_.zero();
  count_uses(buffer_.parameters(), buffer_.layout(), num_microbatches, uses_left_, pending_);
  next_bucket_ = 0;
}

void FullGradientSync::after_gradient(std::size_t parameter) {
  if (!overlaps_) return;
  PHAROS_CHECK(uses_left_.at(parameter) > 0, buffer_.parameters()[parameter]->name +
                                                 ": more gradients than its uses in the microbatches of this step");
  if (--uses_left_[parameter] != 0) return;
  --pending_[buffer_.layout().bucket_of[parameter]];
  while (next_bucket_ < pending_.size() && pending_[next_bucket_] == 0) start_next();
}

void FullGradientSync::start_next() {
  const std::size_t bucket = next_bucket_++;
  reductions_.push_back(reducer_.start(buffer_.bucket_view(buffer_.buckets()[bucket]), bucket));
}

void FullGradientSync::start_remaining() {
  while (next_bucket_ < buffer_.buckets().size()) start_next();
}

void FullGradientSync::finish() {
  for (std::size_t bucket = 0; bucket < reductions_.size(); ++bucket) {
    BucketReducer::Reduction& reduction = reductions_[bucket];
    reduction.work.wait();
    if (!reducer_.is_copying()) continue;
    const bool is_whole = reduction.result.numel() == reduction.buffer.numel();
    (is_whole ? buffer_.bucket_view(buffer_.buckets()[bucket]) : held_[bucket]).copy_(reduction.result);
    reduction = {};
  }
  reductions_.clear();
}

ShardedGradientSync::ShardedGradientSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                                         const std::vector<HeldRange>& held_ranges, BucketReducer reducer,
                                         bool overlaps)
    : parameters_(std::move(parameters)), layout_(layout), reducer_(reducer), overlaps_(overlaps) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(parameters_.front()->data.device());
  shard_ = at::zeros({num_elements(held_ranges)}, options);
  for (const HeldRange& range : held_ranges) held_.push_back(shard_.narrow(0, range.offset, range.length()));
  buffers_.resize(layout_.buckets.size());
  for (tensor::Parameter* parameter : parameters_) parameter->main_grad.reset();
}

void ShardedGradientSync::begin_step(int num_microbatches) {
  finish();
  PHAROS_CHECK(microbatches_left_ == 0, "a step begins before the gradients of the last one are finished");
  shard_.zero_();
  microbatches_left_ = num_microbatches;
  begin_microbatch();
}

void ShardedGradientSync::begin_microbatch() {
  count_uses(parameters_, layout_, 1, uses_left_, pending_);
  next_bucket_ = 0;
}

void ShardedGradientSync::before_gradient(std::size_t parameter) {
  const std::size_t bucket = layout_.bucket_of[parameter];
  if (bucket < next_bucket_) start_microbatch_rest();  // the next microbatch, although some gradients never came
  PHAROS_CHECK(microbatches_left_ > 0, parameters_[parameter]->name + ": more microbatches than the step has");
  if (buffers_[bucket].defined()) return;
  const Bucket& range = layout_.buckets[bucket];
  buffers_[bucket] = at::zeros({range.end - range.begin}, shard_.options());
  for (const std::size_t index : range.parameters) {
    parameters_[index]->main_grad = buffers_[bucket]
                                        .narrow(0, layout_.offsets[index] - range.begin, layout_.num_elements_of(index))
                                        .view(layout_.shapes[index]);
  }
}

void ShardedGradientSync::after_gradient(std::size_t parameter) {
  if (--uses_left_.at(parameter) != 0) return;
  --pending_[layout_.bucket_of[parameter]];
  while (next_bucket_ < pending_.size() && pending_[next_bucket_] == 0) start_next();
  if (next_bucket_ == pending_.size()) start_microbatch_rest();
}

void ShardedGradientSync::start_microbatch_rest() {
  while (next_bucket_ < layout_.buckets.size()) start_next();
  --microbatches_left_;
  begin_microbatch();
}

void ShardedGradientSync::start_next() {
  const std::size_t bucket = next_bucket_++;
  const Bucket& range = layout_.buckets[bucket];
  finish();  // one reduction at a time beside the bucket that fills: memory for two, a bucket's backward pass to hide
             // in
  at::Tensor buffer = std::exchange(buffers_[bucket], {});
  if (!buffer.defined()) buffer = at::zeros({range.end - range.begin}, shard_.options());  // others may have gradients
  for (const std::size_t index : range.parameters) parameters_[index]->main_grad.reset();
  in_flight_ = bucket;
  reduction_ = reducer_.start(buffer, bucket);
  if (!overlaps_) finish();
}

void ShardedGradientSync::start_remaining() {
  while (microbatches_left_ > 0) start_microbatch_rest();
}

void ShardedGradientSync::finish() {
  if (!reduction_) return;
  reduction_->work.wait();
  held_[in_flight_].add_(reduction_->result);
  reduction_.reset();
}

}  // namespace pharos::optim

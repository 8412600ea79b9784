#include "pharos/optim/parallel/gradient_sync.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::optim {
BucketReducer::BucketReducer(comm::Group* group, const DataParallelOptions& options, at::ScalarType type,
                             comm::Group* expert_group)
    : lanes_{Lane{.group = group}, Lane{.group = expert_group}},
      type_(options.reduce_in_fp32 || (group == nullptr && expert_group == nullptr) ? at::kFloat : type),
      scatters_(shards_states(options.strategy)) {
  if (group == nullptr || !options.averages) return;
  const double share = 1.0 / static_cast<double>(group->size());
  auto& [dense, expert] = lanes_;
  if (options.average_in_collective) {
    dense.op = comm::ReduceOp::kAverage;
    expert.factor = share;
  } else if (type_ == at::kFloat) {
    remaining_factor_ = share;
  } else {
    dense.factor = expert.factor = share;  // before it is rounded: a sum of fp16 gradients could overflow
  }
}

BucketReducer::Reduction BucketReducer::start(const at::Tensor& bucket, std::size_t index, bool is_expert) const {
  const Lane& lane = lanes_[is_expert];
  if (lane.factor != 1) bucket.mul_(lane.factor);
  Reduction reduction;
  reduction.buffer = lane.group == nullptr ? bucket : bucket.to(type_);
  reduction.result = reduction.buffer;
  if (lane.group == nullptr) return reduction;
  const comm::Purpose purpose{is_expert ? "gradient bucket of experts" : "gradient bucket",
                              static_cast<std::int64_t>(index)};
  if (scatters_) {
    const std::int64_t length = bucket.numel() / lane.group->size();
    reduction.result = reduction.buffer.narrow(0, lane.group->rank() * length, length);
    reduction.work = lane.group->reduce_scatter(reduction.result, reduction.buffer, lane.op, purpose);
  } else {
    reduction.work = lane.group->all_reduce(reduction.buffer, lane.op, purpose);
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
  uses_left_.clear();
  pending_.clear();
  for (const auto* parameter : buffer_.parameters()) uses_left_.push_back(parameter->num_uses * num_microbatches);
  for (const Bucket& bucket : buffer_.buckets()) pending_.push_back(bucket.parameters.size());
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
  const Bucket& range = buffer_.buckets()[bucket];
  reductions_.push_back(reducer_.start(buffer_.bucket_view(range), bucket, range.is_expert));
}

void FullGradientSync::start_remaining() {
  while (next_bucket_ < buffer_.buckets().size()) start_next();
}

void FullGradientSync::finish() {
  for (std::size_t bucket = 0; bucket < reductions_.size(); ++bucket) {
    BucketReducer::Reduction& reduction = reductions_[bucket];
    reduction.work.wait();
    if (reduction.buffer.scalar_type() == at::kFloat) continue;
    const bool is_whole = reduction.result.numel() == reduction.buffer.numel();
    (is_whole ? buffer_.bucket_view(buffer_.buckets()[bucket]) : held_[bucket]).copy_(reduction.result);
    reduction = {};
  }
  reductions_.clear();
}

ShardedGradientSync::ShardedGradientSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                                         const std::vector<HeldRange>& held_ranges, BucketReducer reducer,
                                         bool overlaps, const std::vector<std::size_t>& chunk_of)
    : parameters_(std::move(parameters)), layout_(layout), reducer_(reducer), overlaps_(overlaps) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device_of(parameters_));
  shard_ = at::zeros({num_elements(held_ranges)}, options);
  for (const HeldRange& range : held_ranges) held_.push_back(shard_.narrow(0, range.offset, range.length()));
  buffers_.resize(layout_.buckets.size());
  for (tensor::Parameter* parameter : parameters_) parameter->main_grad.reset();
  for (std::size_t bucket = 0; bucket < chunk_of.size(); ++bucket) {
    chunks_.resize(std::max(chunks_.size(), chunk_of[bucket] + 1));
    chunks_[chunk_of[bucket]].buckets.push_back(bucket);
  }
}

void ShardedGradientSync::begin_step(int num_microbatches) {
  finish();
  PHAROS_CHECK(current_ == nullptr, "a step begins before the gradients of the last one are finished");
  shard_.zero_();
  num_gradients_.assign(parameters_.size(), 0);
  for (Chunk& chunk : chunks_) chunk.num_passes = 0;
  num_microbatches_ = num_microbatches;
}

void ShardedGradientSync::begin_pass(std::size_t chunk) {
  start_rest();
  current_ = chunk < chunks_.size() ? &chunks_[chunk] : nullptr;
  if (current_ == nullptr) return;  // a chunk without parameters
  next_ = 0;
  ++current_->num_passes;
  PHAROS_CHECK(current_->num_passes <= num_microbatches_,
               "chunk " + std::to_string(chunk) + ": more microbatches than the step has");
  start_complete();
}

void ShardedGradientSync::before_gradient(std::size_t parameter) {
  const std::size_t bucket = layout_.bucket_of[parameter];
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
  ++num_gradients_.at(parameter);
  start_complete();
}

/// Whether all gradients of the microbatches up to the one at hand have come.
bool ShardedGradientSync::is_complete(std::size_t bucket) const {
  const auto& parameters = layout_.buckets[bucket].parameters;
  return std::all_of(parameters.begin(), parameters.end(), [&](std::size_t index) {
    return num_gradients_[index] >= parameters_[index]->num_uses * current_->num_passes;
  });
}

/// A parameter with several uses may belong to two chunks, and the last of its gradients come in a pass of the other:
/// the last reduction of its bucket is the last of the step.
bool ShardedGradientSync::is_held_back(std::size_t bucket) const {
  const auto& parameters = layout_.buckets[bucket].parameters;
  return current_->num_passes == num_microbatches_ &&
         std::any_of(parameters.begin(), parameters.end(),
                     [&](std::size_t index) { return parameters_[index]->num_uses > 1; });
}

void ShardedGradientSync::start_complete() {
  while (current_ != nullptr && next_ < current_->buckets.size()) {
    const std::size_t bucket = current_->buckets[next_];
    if (!is_held_back(bucket) && !is_complete(bucket)) return;
    start_next();
  }
}

void ShardedGradientSync::start_rest() {
  while (current_ != nullptr && next_ < current_->buckets.size()) start_next();
}

void ShardedGradientSync::start_next() {
  const std::size_t bucket = current_->buckets[next_++];
  if (!is_held_back(bucket)) start(bucket);
}

void ShardedGradientSync::start(std::size_t bucket) {
  const Bucket& range = layout_.buckets[bucket];
  finish();  // one reduction at a time beside the bucket that fills: memory for two, a bucket's backward pass to hide
             // in
  at::Tensor buffer = std::exchange(buffers_[bucket], {});
  if (!buffer.defined()) buffer = at::zeros({range.end - range.begin}, shard_.options());  // others may have gradients
  for (const std::size_t index : range.parameters) parameters_[index]->main_grad.reset();
  in_flight_ = bucket;
  reduction_ = reducer_.start(buffer, bucket, range.is_expert);
  if (!overlaps_) finish();
}

void ShardedGradientSync::start_remaining() {
  start_rest();
  for (Chunk& chunk : chunks_) {
    current_ = &chunk;
    for (const std::size_t bucket : chunk.buckets) {
      if (is_held_back(bucket)) start(bucket);
    }
  }
  current_ = nullptr;
  for (std::size_t bucket = 0; bucket < buffers_.size(); ++bucket) {
    PHAROS_CHECK(!buffers_[bucket].defined(), parameters_[layout_.buckets[bucket].parameters.front()]->name +
                                                  ": its gradient came outside of the passes of its chunk");
  }
}

void ShardedGradientSync::finish() {
  if (!reduction_) return;
  reduction_->work.wait();
  held_[in_flight_].add_(reduction_->result);
  reduction_.reset();
}

}  // namespace pharos::optim

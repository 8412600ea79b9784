// Gradients on their way from the backward pass to the optimizer: where the layers add them, and when they are reduced
// over the data-parallel ranks. Every rank starts the same reductions in the same order, bucket by bucket.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/optim/flat_layout.h"
#include "pharos/optim/gradient_buffer.h"
#include "pharos/optim/parallel/sharding.h"

namespace pharos::optim {

/// Reduces buckets over a data-parallel group, those of experts over `expert_group`, or does nothing for a group of
/// one.
class BucketReducer {
 public:
  /// Reduces in `type`: fp32, or narrower with a copy. A group that is null: one rank. Averages are those over the
  /// ranks of `group`, also of experts: the ranks of expert_group have seen the tokens of all of them.
  BucketReducer(comm::Group* group, const DataParallelOptions& options, at::ScalarType type,
                comm::Group* expert_group = nullptr);

  struct Reduction {
    comm::Work work;
    at::Tensor buffer;  ///< what is sent, kept until the work is done: the bucket itself, or a narrower copy
    at::Tensor result;  ///< in the reduction's type: the sum, or this rank's part of it; part of `buffer`
  };
  /// `bucket`: fp32, flat; untouched until the work is done. It may be overwritten.
  Reduction start(const at::Tensor& bucket, std::size_t index, bool is_expert = false) const;

  /// What the results still have to be multiplied with: averaging in fp32 costs no pass over the gradients.
  double remaining_factor() const { return remaining_factor_; }

 private:
  /// How buckets of one kind are reduced.
  struct Lane {
    comm::Group* group = nullptr;
    comm::ReduceOp op = comm::ReduceOp::kSum;
    double factor = 1;  ///< on what is sent
  };
  std::array<Lane, 2> lanes_;  ///< [is expert]
  at::ScalarType type_;
  bool scatters_ = false;
  double remaining_factor_ = 1;
};

class GradientSync {
 public:
  virtual ~GradientSync() = default;
  /// Zeroes the gradients; this many microbatches follow.
  virtual void begin_step(int num_microbatches) = 0;
  /// The gradients that complete a microbatch of model chunk `chunk` come from now on.
  virtual void begin_pass(std::size_t /*chunk*/) {}
  virtual void before_gradient(std::size_t /*parameter*/) {}
  virtual void after_gradient(std::size_t parameter) = 0;
  /// Starts what has not been started, for all microbatches.
  virtual void start_remaining() = 0;
  virtual void finish() = 0;
  /// fp32, one per held range; complete after finish().
  virtual const std::vector<at::Tensor>& held() const = 0;
};

/// Gradients in full, reduced once a step: no_shard and optim.
class FullGradientSync : public GradientSync {
 public:
  FullGradientSync(std::vector<tensor::Parameter*> parameters, FlatLayout layout,
                   const std::vector<HeldRange>& held_ranges, BucketReducer reducer, bool overlaps);
  void begin_step(int num_microbatches) override;
  void after_gradient(std::size_t parameter) override;
  void start_remaining() override;
  void finish() override;
  const std::vector<at::Tensor>& held() const override { return held_; }
  /// Buckets whose reduction has been started in this step.
  std::size_t num_started() const { return next_bucket_; }

 private:
  void start_next();

  GradientBuffer buffer_;
  BucketReducer reducer_;
  bool overlaps_;
  std::vector<at::Tensor> held_;
  std::vector<int> uses_left_;                        ///< [parameter] in this step
  std::vector<std::size_t> pending_;                  ///< [bucket] parameters without their last gradient
  std::size_t next_bucket_ = 0;                       ///< not started yet
  std::vector<BucketReducer::Reduction> reductions_;  ///< [bucket]
};

/// Gradients of a bucket exist from the first one until it is reduced and added to this rank's shard: optim_grads and
/// optim_grads_params.
///
/// What is reduced when follows from the passes alone, which are the same on all data-parallel ranks: in each, every
/// bucket of its chunk once, in order; early where all gradients of the microbatch have come, else when the next pass
/// begins. A rank on which a gradient never comes thus starts later, but the same. A gradient of the next microbatch
/// that comes early (that of a norm in the backward pass, before the weight pass) is reduced with this one's.
class ShardedGradientSync : public GradientSync {
 public:
  /// chunk_of: [bucket] the model chunk whose passes reduce it.
  ShardedGradientSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                      const std::vector<HeldRange>& held_ranges, BucketReducer reducer, bool overlaps,
                      const std::vector<std::size_t>& chunk_of);
  void begin_step(int num_microbatches) override;
  void begin_pass(std::size_t chunk) override;
  void before_gradient(std::size_t parameter) override;
  void after_gradient(std::size_t parameter) override;
  void start_remaining() override;
  void finish() override;
  const std::vector<at::Tensor>& held() const override { return held_; }

 private:
  struct Chunk {
    std::vector<std::size_t> buckets;
    int num_passes = 0;  ///< begun in this step
  };
  bool is_complete(std::size_t bucket) const;
  bool is_held_back(std::size_t bucket) const;
  void start_complete();
  void start_rest();
  void start_next();
  void start(std::size_t bucket);

  std::vector<tensor::Parameter*> parameters_;
  const FlatLayout& layout_;
  BucketReducer reducer_;
  bool overlaps_;
  at::Tensor shard_;
  std::vector<at::Tensor> held_;     ///< views of shard_, one per bucket
  std::vector<at::Tensor> buffers_;  ///< [bucket] undefined but between first gradient and reduction
  std::vector<int> num_gradients_;   ///< [parameter] in this step
  std::vector<Chunk> chunks_;
  Chunk* current_ = nullptr;  ///< of the pass at hand
  std::size_t next_ = 0;      ///< of its buckets, not started yet
  int num_microbatches_ = 0;
  std::size_t in_flight_ = 0;  ///< the bucket of reduction_
  std::optional<BucketReducer::Reduction> reduction_;
};

}  // namespace pharos::optim

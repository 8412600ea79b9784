// How the tokens of a sequence are divided over the ranks of a context-parallel group, in zigzag order, and blocks of
// keys and values on their way between these ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "pharos/comm/group.h"

namespace pharos::nn {

/// Without a group, or in a group of one, a rank has all tokens.
struct ContextParallel {
  /// kRing: blocks of keys and values pass from rank to rank beside the products with them (Liu et al. 2023).
  /// kAllGather: every rank has those of all ranks at once.
  enum class Exchange : std::uint8_t { kRing, kAllGather };

  comm::Group* group = nullptr;
  Exchange exchange = Exchange::kRing;

  std::int64_t size() const { return group == nullptr ? 1 : group->size(); }
  std::int64_t rank() const { return group == nullptr ? 0 : group->rank(); }
  bool is_split() const { return size() > 1; }
  /// The rank whose block is at hand in step 0, 1, …: this one, then the ones before it.
  std::int64_t source(std::int64_t step) const { return (rank() - step + size()) % size(); }
};

/// A tensor going one rank further round the ring while another one comes in.
class RingTransfer {
 public:
  explicit RingTransfer(const ContextParallel& parallel) : parallel_(parallel) {}
  /// Sends `block`, contiguous, to the next rank and receives one of its shape from the rank before. One at a time.
  void start(const at::Tensor& block, const char* what);
  /// The block that has come in.
  at::Tensor wait();

 private:
  ContextParallel parallel_;
  at::Tensor incoming_;
  comm::Work sent_, received_;  // the last members: they end before their buffers do
};

/// Hands out the block of every rank, that of source(step) in step `step`, while the next one is under way.
class BlockExchange {
 public:
  /// own: contiguous, of one shape on all ranks.
  BlockExchange(const at::Tensor& own, const ContextParallel& parallel, const char* what);
  /// Of steps 0, 1, … in turn. The block must not be changed.
  at::Tensor take();

 private:
  ContextParallel parallel_;
  const char* what_;
  std::int64_t step_ = 0;
  at::Tensor current_;   // ring: the block at hand
  at::Tensor gathered_;  // all-gather: [size, …]
  RingTransfer transfer_;
  comm::Work work_;
};

/// Brings the gradients that every rank has of every rank's block home and adds them up.
class GradientExchange {
 public:
  GradientExchange(const ContextParallel& parallel, const char* what);
  /// This rank's gradient of the block of source(step), of steps 0, 1, … in turn; may be overwritten.
  void give(const at::Tensor& gradient);
  /// The sum over all ranks of the gradient of this rank's block. After the last step.
  at::Tensor wait();

 private:
  ContextParallel parallel_;
  const char* what_;
  std::int64_t step_ = 0;
  at::Tensor own_;       // ring: of the block of this rank, which need not travel
  at::Tensor gathered_;  // all-gather: [size, …], by the rank whose block it is
  RingTransfer transfer_;
};

}  // namespace pharos::nn

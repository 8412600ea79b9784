// Runs a schedule's action list on one rank: transfers follow from the list. It knows no schedule by name and no layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/pipeline/measured.h"
#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

using Tensors = std::vector<at::Tensor>;

struct TensorSpec {
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kFloat;
};

/// What the actions mean on this rank. The executor opens the spans of microbatches; the runner those within them.
class StageRunner {
 public:
  virtual ~StageRunner() = default;
  /// What stage `stage` hands to the next one for `microbatch`; the gradients that come back look the same.
  virtual std::vector<TensorSpec> boundary(int microbatch, int stage) = 0;
  /// Forward pass of `microbatch` through model chunk `chunk`; what its backward needs is kept until then. inputs: what
  /// the stage before handed over; empty on the first stage. Returns what the next stage gets, of the sizes and types
  /// of boundary(), contiguous and detached from the graph; on the last stage nothing. To be kept no longer than
  /// needed: the executor drops its references as soon as the tensors have been sent.
  virtual Tensors forward(int microbatch, int chunk, Tensors inputs) = 0;
  /// Backward pass; with the weight gradient unless the schedule has kWeight actions. output_grads: of what forward()
  /// returned; empty on the last stage. Returns the gradients of the inputs; on the first stage nothing.
  virtual Tensors backward(int microbatch, int chunk, Tensors output_grads) = 0;
  /// Weight gradient of a backward that left it out.
  virtual void weight(int microbatch, int chunk) = 0;
};

/// Ways between the ranks of a pipeline. A transport that serves calls in order (NCCL) needs one for each direction,
/// lest a receive that waits holds up a send. Null with one rank.
struct Channels {
  comm::Group* ascending = nullptr;   ///< to higher ranks
  comm::Group* descending = nullptr;  ///< to lower ranks
};

class Executor {
 public:
  /// Runs the part of `rank` in `schedule` (sound, see check()). Both channels have the schedule's ranks in order, and
  /// outlive this. Tensors are received on `device`.
  Executor(Schedule schedule, int rank, Channels channels, at::Device device);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Schedule& schedule() const;

  /// Calls `runner` for each action, in order, and moves tensors between ranks: receives are posted before they are
  /// needed, sends are not waited for but at the end. Every rank of the schedule must call it. An exception of the
  /// runner ends the walk and passes through: the other ranks then wait in vain until their time-out, or see this one
  /// go. Returns when every action was; `step` is written into it, and with rank and action into error messages.
  MeasuredStep run(StageRunner& runner, std::int64_t step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pharos::pipeline

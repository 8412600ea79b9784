// Runs a schedule's action list on one rank. It knows no schedule by name and no layer.
#pragma once

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// What the actions mean on this rank. The runner opens the spans of its own work.
class StageRunner {
 public:
  virtual ~StageRunner() = default;
  /// Forward pass of `microbatch` through model chunk `chunk`; what its backward needs is kept until then.
  virtual void forward(int microbatch, int chunk) = 0;
  /// Backward pass; with the weight gradient unless the schedule has kWeight actions.
  virtual void backward(int microbatch, int chunk) = 0;
  /// Weight gradient of a backward that left it out.
  virtual void weight(int microbatch, int chunk) = 0;
};

/// Calls `runner` for each action of `rank`, in order; an exception of the runner ends the walk and passes through.
/// Throws InternalError when `rank` is outside the schedule, or when the schedule has more than one rank: activations
/// and their gradients do not travel between ranks.
void run(const Schedule& schedule, int rank, StageRunner& runner);

}  // namespace pharos::pipeline

#include "pharos/pipeline/executor.h"

#include "pharos/base/error.h"

namespace pharos::pipeline {

void run(const Schedule& schedule, int rank, StageRunner& runner) {
  PHAROS_CHECK(schedule.num_ranks == 1, "schedule " + schedule.name + " has " + std::to_string(schedule.num_ranks) +
                                            " ranks; the executor moves no tensors between ranks");
  PHAROS_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < schedule.actions.size(),
               "schedule " + schedule.name + " has no rank " + std::to_string(rank));
  for (const Action& action : schedule.actions[rank]) {
    switch (action.phase) {
      case Phase::kForward:
        runner.forward(action.microbatch, action.chunk);
        break;
      case Phase::kBackward:
        runner.backward(action.microbatch, action.chunk);
        break;
      case Phase::kWeight:
        runner.weight(action.microbatch, action.chunk);
        break;
    }
  }
}

}  // namespace pharos::pipeline

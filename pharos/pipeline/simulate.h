// When every action of a schedule starts and ends, from the costs of the stages.
#pragma once

#include <cstddef>
#include <vector>

#include "pharos/pipeline/schedule.h"

namespace pharos::pipeline {

/// What the stages cost for one microbatch. Times are in one unit of the caller's choice.
struct StageCosts {
  std::vector<double> forward;   ///< [stage]
  std::vector<double> backward;  ///< [stage], the input gradient alone
  std::vector<double> weight;    ///< [stage], the weight gradient; part of kBackward in a schedule without kWeight
  std::vector<double>
      transfer;  ///< [stage] -> from this stage to the next, and of the gradient back; the last is unused
  std::vector<double> activation_bytes;  ///< [stage], from the start of the forward to the end of the backward
  /// [stage], from the end of the backward to the end of the weight gradient; unused without kWeight. What the forward
  /// kept and gradients: more than activation_bytes where the forward kept little to compute it again.
  std::vector<double> weight_bytes;
};

/// Equal stages. Without kWeight a backward takes `backward + weight`. Each stage keeps `bytes` until its weight
/// gradient.
StageCosts even_costs(int num_stages, double forward = 1, double backward = 1, double weight = 1, double transfer = 0,
                      double bytes = 1);

struct TimedAction {
  Action action;
  int stage;
  double start;
  double end;
};

/// One rank's time: busy + idle() = span of the timeline.
struct RankTimeline {
  std::vector<TimedAction> actions;  ///< in order
  double busy = 0;
  double idle_before = 0;    ///< before its first action: the pipeline fills
  double idle_stage = 0;     ///< between its actions: another stage was still computing
  double idle_transfer = 0;  ///< between its actions: the tensor was under way
  double idle_after = 0;     ///< after its last action: the pipeline drains
  double bubble = 0;         ///< idle / span
  int peak_in_flight = 0;    ///< chunk activations, see peak_in_flight()
  double peak_bytes = 0;     ///< the most bytes of activations at once
  double idle() const { return idle_before + idle_stage + idle_transfer + idle_after; }
};

struct Timeline {
  Schedule schedule;
  double span = 0;  ///< from 0, the first start, to the last end
  std::vector<RankTimeline> ranks;
  double bubble = 0;      ///< (span x ranks - busy) / (span x ranks), busy of all ranks together
  double peak_bytes = 0;  ///< of the rank that needs most
};

/// Every rank works through its list and starts an action as soon as the one before has ended and its input has
/// arrived. A transfer takes the costs' time between different ranks and none within a rank, occupies no rank, and does
/// not share its way with others. InternalError when the schedule is not sound (check()), when the costs do not have
/// one entry for each stage, or when one is negative or not finite.
Timeline simulate(const Schedule& schedule, const StageCosts& costs);

}  // namespace pharos::pipeline

// What the training loop tells telemetry in numbers: Megatron's training metrics and Pharos's own
// (lens/metrics/training_metrics.h). Does nothing where no metrics are exported.
#pragma once

#include <cstdint>
#include <vector>

#include "pharos/lens/metrics/training_metrics.h"

namespace pharos::train {

class TelemetryFeed {
 public:
  /// A step is finished. Called for every step.
  void step(std::int64_t data_wait_ns, std::int64_t tokens);
  void evaluation(double validation_loss);
  void checkpoint(double seconds, double bytes);
  /// The end of a log interval: what the loop knows, completed by what came since the last one.
  void record(lens::TrainingSample sample);

 private:
  std::vector<double> data_wait_ms_;
  std::int64_t tokens_ = 0;
};

}  // namespace pharos::train

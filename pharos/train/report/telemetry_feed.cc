#include "pharos/train/report/telemetry_feed.h"

#include "pharos/base/clock.h"
#include "pharos/lens/life/telemetry.h"

namespace pharos::train {
namespace {

lens::Meter* meter() {
  lens::Telemetry* telemetry = lens::Telemetry::get();
  return telemetry != nullptr ? telemetry->meter() : nullptr;
}

}  // namespace

void TelemetryFeed::step(std::int64_t data_wait_ns, std::int64_t tokens) {
  lens::Meter* const to = meter();
  if (to == nullptr) return;
  data_wait_ms_.push_back(static_cast<double>(data_wait_ns) / 1e6);
  tokens_ += tokens;
  lens::record_progress(*to, base::wall_ns());
}

void TelemetryFeed::evaluation(double validation_loss) {
  lens::TrainingSample sample;
  sample.validation_loss = validation_loss;
  if (lens::Meter* const to = meter()) lens::record_training_metrics(*to, sample);
}

void TelemetryFeed::checkpoint(double seconds, double bytes) {
  lens::TrainingSample sample;
  sample.checkpoint_seconds = seconds;
  sample.checkpoint_bytes = bytes;
  if (lens::Meter* const to = meter()) lens::record_training_metrics(*to, sample);
}

void TelemetryFeed::record(lens::TrainingSample sample) {
  lens::Meter* const to = meter();
  if (to == nullptr) return;
  sample.data_wait_ms = data_wait_ms_;
  sample.consumed_tokens = tokens_;
  lens::record_training_metrics(*to, sample);
  data_wait_ms_.clear();
  tokens_ = 0;
}

}  // namespace pharos::train

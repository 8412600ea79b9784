// TensorBoard files of a run (logger.tensorboard_dir), under Megatron's and Megatron-Bridge's scalar names.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "pharos/config/run_config.h"
#include "pharos/lens/tensorboard/training_scalars.h"
#include "pharos/train/report/progress.h"

namespace pharos::train {

struct StepRecord;

/// Does nothing without logger.tensorboard_dir. A disk that is full costs the curves, not the run.
class BoardFeed {
 public:
  /// `run_yaml`: the resolved configuration, shown as text; `writes`: false on the ranks that leave the files to
  /// another. UserError when the folder cannot be written.
  BoardFeed(const config::RunConfig& config, const std::string& run_yaml, bool writes, std::int64_t world_size,
            Console& console);

  /// iteration_seconds: mean of the log interval that ends with this step; peak_memory_bytes: since the start.
  void step(const StepRecord& record, std::optional<double> iteration_seconds, std::int64_t peak_memory_bytes);
  void evaluation(std::int64_t iteration, std::int64_t consumed_samples, const std::string& set_name, double loss);

 private:
  /// Steps of the last logger.throughput_window_size, for throughput/….
  struct Window {
    double seconds = 0, samples = 0, flops = 0;
  };
  void add_routing(lens::TrainingScalars& scalars, const StepRecord& record) const;
  void add_throughput(const StepRecord& record);
  void add_timers(const StepRecord& record);
  template <typename Write>
  void guarded(Write&& write);

  const config::RunConfig& config_;
  std::int64_t world_size_;
  Console& console_;
  std::unique_ptr<lens::EventFile> file_;
  std::deque<Window> window_;
};

}  // namespace pharos::train

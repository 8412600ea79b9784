// Forward and backward passes over the microbatches of one step, by a schedule.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "pharos/config/run_config.h"
#include "pharos/model/transformer.h"
#include "pharos/pipeline/executor.h"
#include "pharos/train/data/microbatch.h"
#include "pharos/train/parallel.h"

namespace pharos::train {

/// Gives microbatch `index` of the step at hand.
using MicrobatchProvider = std::function<Microbatch(int index)>;

struct LossSums {
  double loss = 0;                         ///< sum over masked tokens
  double tokens = 0;                       ///< number of them
  std::vector<LossSums> predictions = {};  ///< of a training step: by depth of multi-token prediction
  double mean() const { return loss / (tokens > 0 ? tokens : 1); }
};

struct StepInput {
  std::int64_t step = 0;  ///< completed steps, keys the dropout
  int num_microbatches = 1;
  double loss_scale = 1;
  MicrobatchProvider microbatch;
  /// Called before each pass that completes the gradients of a microbatch in a chunk (optim::DataParallel::begin_pass).
  std::function<void(std::size_t chunk)> begin_pass;
};

struct StepTimes {
  std::int64_t data_wait_ns = 0;    ///< waiting for microbatches, part of the time around it
  pipeline::MeasuredStep pipeline;  ///< what this rank did
};

class ForwardBackward {
 public:
  /// chunks: [chunk of this pipeline rank] as model.pipeline_schedule places them. All arguments outlive this.
  ForwardBackward(const config::RunConfig& config, std::vector<model::Transformer*> chunks, const Parallel& parallel);

  /// Adds the gradient of this rank's loss, times loss_scale, to every main_grad (bridge-config.md 7.4). Default: the
  /// mean over microbatches of each one's mean over its tokens; with calculate_per_token_loss the sum over tokens, to
  /// be divided by their number over the whole global batch. Losses of multi-token prediction are added, each depth's
  /// mean (or sum) times mtp_loss_scaling_factor / depths, and those of routers through ForwardContext. Returns this
  /// rank's sums: nothing but on the last stage.
  LossSums train(const StepInput& input, StepTimes& times);

  /// Losses of `num_microbatches` without gradients.
  LossSums evaluate(int num_microbatches, const MicrobatchProvider& microbatch);

 private:
  pipeline::Executor& executor(int num_microbatches, bool trains);

  const config::RunConfig& config_;
  std::vector<model::Transformer*> chunks_;
  const Parallel& parallel_;
  std::map<std::pair<int, bool>, std::unique_ptr<pipeline::Executor>> executors_;  ///< by microbatches and trains
};

}  // namespace pharos::train

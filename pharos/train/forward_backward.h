// Forward and backward passes over the microbatches of one step, by a schedule.
#pragma once

#include <cstdint>
#include <functional>

#include "pharos/config/run_config.h"
#include "pharos/model/transformer.h"
#include "pharos/train/microbatch.h"

namespace pharos::train {

/// Gives microbatch `index` of the step at hand.
using MicrobatchProvider = std::function<Microbatch(int index)>;

struct LossSums {
  double loss = 0;    ///< sum over masked tokens
  double tokens = 0;  ///< number of them
  double mean() const { return loss / (tokens > 0 ? tokens : 1); }
};

struct StepInput {
  std::int64_t step = 0;  ///< completed steps, keys the dropout
  int num_microbatches = 1;
  double loss_scale = 1;
  MicrobatchProvider microbatch;
};

struct StepTimes {
  std::int64_t data_wait_ns = 0;  ///< waiting for microbatches, part of the time around it
};

/// Adds the gradient of this rank's loss, times loss_scale, to every main_grad (bridge-config.md 7.4). Default: the
/// mean over microbatches of each one's mean over its tokens; with calculate_per_token_loss the sum over tokens, to be
/// divided by their number over the whole global batch. Returns this rank's sums.
LossSums forward_backward(model::Transformer& model, const config::RunConfig& config, const StepInput& input,
                          StepTimes* times);

/// Losses of `num_microbatches` without gradients.
LossSums evaluate_microbatches(model::Transformer& model, int num_microbatches, const MicrobatchProvider& microbatch);

}  // namespace pharos::train

// The curves of a training run in TensorBoard, under Megatron's names (megatron-telemetry.md section 9.3).
//
//     EventFile file(run_folder / "tensorboard");          // last rank only
//     TrainingScalars scalars;
//     scalars.iteration = 10;
//     scalars.consumed_samples = 80;
//     scalars.losses = {{"lm loss", 3.21}};
//     scalars.grad_norm = 1.5;                              // what is not known stays unset and is not written
//     write_scalars(file, scalars);                         // every tensorboard_log_interval
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pharos/lens/tensorboard/event_file.h"

namespace pharos::lens {

using NamedValues = std::vector<std::pair<std::string, double>>;

/// Prediction depth of a multi-token prediction head; the first is `mtp_1`.
struct MultiTokenScalars {
  std::optional<double> loss;                                ///< `mtp_N loss`
  std::optional<double> acceptance_rate_percent;             ///< `mtp_N_acceptance_rate`
  std::optional<double> cumulative_acceptance_rate_percent;  ///< `mtp_N_cumulative_acceptance_rate`
};

/// What the loop knows at a log point. A name followed by "+" is written a second time as "NAME vs samples" with
/// consumed_samples as x; x is the iteration otherwise.
struct TrainingScalars {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;

  std::optional<double> learning_rate;                ///< `learning-rate`+
  std::optional<std::int64_t> batch_size;             ///< `batch-size`+, samples in a global batch
  std::optional<std::int64_t> skipped_train_samples;  ///< `skipped-train-samples`, only above 0
  NamedValues losses;                                 ///< KEY+, raw loss of this iteration; key "lm loss", …
  std::optional<double> loss_scale;                   ///< `loss-scale`+
  std::optional<std::int64_t> world_size;             ///< `world-size`+
  std::optional<double> grad_norm;                    ///< `grad-norm`+
  std::optional<std::int64_t> num_zeros;              ///< `num-zeros`+, zero elements of the gradient
  std::optional<double> params_norm;                  ///< `params-norm`+
  std::optional<double> max_attention_logit;          ///< `max_attention_logit`
  std::optional<double> indexer_loss;                 ///< `indexer loss`

  std::optional<std::int64_t> memory_reserved_bytes;       ///< `mem-reserved-bytes`
  std::optional<std::int64_t> memory_allocated_bytes;      ///< `mem-allocated-bytes`
  std::optional<std::int64_t> memory_max_allocated_bytes;  ///< `mem-max-allocated-bytes`
  std::optional<std::int64_t> memory_allocated_count;      ///< `mem-allocated-count`

  std::optional<double> iteration_time_s;             ///< `iteration-time`, mean of the log interval
  std::optional<double> throughput_tflops_per_gpu;    ///< `throughput`
  std::optional<double> energy_per_iteration_joules;  ///< `iter-energy/gpu`
  std::optional<double> power_watts;                  ///< `power/gpu`

  NamedValues moe_losses;  ///< NAME, mean over layers: "load_balancing_loss", "seq_load_balancing_loss", "z_loss", …
  std::vector<std::pair<std::string, std::vector<double>>> moe_layer_losses;  ///< `moe/NAME_layer_I`, I from 0
  std::vector<MultiTokenScalars> multi_token_predictions;
};

/// One evaluation of one loss.
struct ValidationScalars {
  std::int64_t iteration = 0;
  std::int64_t consumed_samples = 0;
  std::string key = "lm loss";
  std::string set_name;         ///< of several validation sets: `KEY validation-NAME`
  double loss = 0;              ///< `KEY validation`+
  bool has_perplexity = false;  ///< also `KEY validation ppl`+ = exp(min(20, loss))
};

/// Adds the points and flushes, so that a run that is killed shows all of its log points. Throws what flush() throws.
void write_scalars(EventFile& file, const TrainingScalars& scalars);
void write_scalars(EventFile& file, const ValidationScalars& scalars);

}  // namespace pharos::lens

#include "pharos/lens/tensorboard/training_scalars.h"

#include <algorithm>
#include <cmath>

namespace pharos::lens {
namespace {

/// Adds points at one place of both x axes.
class PointWriter {
 public:
  PointWriter(EventFile& file, std::int64_t iteration, std::int64_t consumed_samples)
      : file_(file), iteration_(iteration), consumed_samples_(consumed_samples) {}

  template <typename Number>
  void add(const std::string& name, const std::optional<Number>& value) {
    if (value) file_.add_scalar(name, static_cast<double>(*value), iteration_);
  }

  template <typename Number>
  void add_both(const std::string& name, const std::optional<Number>& value) {
    add(name, value);
    if (value) file_.add_scalar(name + " vs samples", static_cast<double>(*value), consumed_samples_);
  }

 private:
  EventFile& file_;
  std::int64_t iteration_;
  std::int64_t consumed_samples_;
};

void add_optimization(PointWriter& points, const TrainingScalars& scalars) {
  points.add_both("learning-rate", scalars.learning_rate);
  if (scalars.skipped_train_samples.value_or(0) > 0) points.add("skipped-train-samples", scalars.skipped_train_samples);
  points.add_both("batch-size", scalars.batch_size);
  for (const auto& [key, loss] : scalars.losses) points.add_both(key, std::optional(loss));
  points.add_both("loss-scale", scalars.loss_scale);
  points.add_both("world-size", scalars.world_size);
  points.add_both("grad-norm", scalars.grad_norm);
  points.add_both("num-zeros", scalars.num_zeros);
  points.add_both("params-norm", scalars.params_norm);
  points.add("max_attention_logit", scalars.max_attention_logit);
  points.add("indexer loss", scalars.indexer_loss);
}

void add_resources(PointWriter& points, const TrainingScalars& scalars) {
  points.add("mem-reserved-bytes", scalars.memory_reserved_bytes);
  points.add("mem-allocated-bytes", scalars.memory_allocated_bytes);
  points.add("mem-max-allocated-bytes", scalars.memory_max_allocated_bytes);
  points.add("mem-allocated-count", scalars.memory_allocated_count);
  points.add("iteration-time", scalars.iteration_time_s);
  points.add("throughput", scalars.throughput_tflops_per_gpu);
  points.add("iter-energy/gpu", scalars.energy_per_iteration_joules);
  points.add("power/gpu", scalars.power_watts);
}

void add_model_parts(PointWriter& points, const TrainingScalars& scalars) {
  for (const auto& [name, loss] : scalars.moe_losses) points.add(name, std::optional(loss));
  for (const auto& [name, layers] : scalars.moe_layer_losses) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      points.add("moe/" + name + "_layer_" + std::to_string(i), std::optional(layers[i]));
    }
  }
  for (std::size_t i = 0; i < scalars.multi_token_predictions.size(); ++i) {
    const MultiTokenScalars& prediction = scalars.multi_token_predictions[i];
    const std::string name = "mtp_" + std::to_string(i + 1);
    points.add(name + " loss", prediction.loss);
    points.add(name + "_acceptance_rate", prediction.acceptance_rate_percent);
    points.add(name + "_cumulative_acceptance_rate", prediction.cumulative_acceptance_rate_percent);
  }
}

}  // namespace

void write_scalars(EventFile& file, const TrainingScalars& scalars) {
  PointWriter points(file, scalars.iteration, scalars.consumed_samples);
  add_optimization(points, scalars);
  add_resources(points, scalars);
  add_model_parts(points, scalars);
  file.flush();
}

void write_scalars(EventFile& file, const ValidationScalars& scalars) {
  PointWriter points(file, scalars.iteration, scalars.consumed_samples);
  const std::string name =
      scalars.key + " validation" + (scalars.set_name.empty() ? std::string() : "-" + scalars.set_name);
  points.add_both(name, std::optional(scalars.loss));
  if (scalars.has_perplexity) points.add_both(name + " ppl", std::optional(std::exp(std::min(20.0, scalars.loss))));
  file.flush();
}

}  // namespace pharos::lens

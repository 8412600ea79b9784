#include "pharos/train/report/board_feed.h"

#include <exception>

#include "pharos/base/memory.h"
#include "pharos/train/report/report.h"

namespace pharos::train {

BoardFeed::BoardFeed(const config::RunConfig& config, const std::string& run_yaml, bool writes, std::int64_t world_size,
                     Console& console)
    : config_(config), world_size_(world_size), console_(console) {
  if (!config.logger.tensorboard_dir || !writes) return;
  file_ = std::make_unique<lens::EventFile>(*config.logger.tensorboard_dir);
  guarded([&] { file_->add_text("run.yaml", "```yaml\n" + run_yaml + "\n```", 0); });
}

template <typename Write>
void BoardFeed::guarded(Write&& write) {
  if (!file_) return;
  try {
    write();
  } catch (const std::exception& error) {
    console_.line(std::string("warning: TensorBoard points are lost: ") + error.what());
  }
}

void BoardFeed::step(const StepRecord& record, std::optional<double> iteration_seconds,
                     std::int64_t peak_memory_bytes) {
  if (!file_) return;
  const config::LoggerConfig& logger = config_.logger;
  window_.push_back(
      {static_cast<double>(record.step_time_ns) / 1e9, static_cast<double>(record.global_batch_size), record.flops});
  if (window_.size() > static_cast<std::size_t>(logger.throughput_window_size)) window_.pop_front();
  lens::TrainingScalars scalars;
  scalars.iteration = record.step;
  scalars.consumed_samples = record.consumed_samples;
  scalars.iteration_time_s = iteration_seconds;
  if (iteration_seconds && logger.log_throughput) {
    scalars.throughput_tflops_per_gpu = record.flops / *iteration_seconds / 1e12 / static_cast<double>(world_size_);
  }
  const bool is_due = record.step % logger.tensorboard_log_interval == 0;
  if (is_due) {
    scalars.learning_rate = record.next_learning_rate;
    scalars.batch_size = record.global_batch_size;
    if (record.skipped_samples > 0) scalars.skipped_train_samples = record.skipped_samples;
    scalars.losses = {{"lm loss", record.loss}};
    add_routing(scalars, record);
    if (logger.log_loss_scale_to_tensorboard) scalars.loss_scale = record.loss_scale;
    if (logger.log_world_size_to_tensorboard) scalars.world_size = world_size_;
    scalars.grad_norm = record.grad_norm;
    scalars.num_zeros = record.num_zeros;
    scalars.params_norm = record.params_norm;
    if (logger.log_memory_to_tensorboard) {
      scalars.memory_allocated_bytes = base::process_memory().resident_bytes;
      scalars.memory_max_allocated_bytes = peak_memory_bytes;
    }
  }
  guarded([&] {
    if (is_due && logger.log_throughput_to_tensorboard) add_throughput(record);
    if (is_due && logger.log_timers_to_tensorboard) add_timers(record);
    lens::write_scalars(*file_, scalars);
  });
}

/// Under their own names of routers (over the iterations alone), like the loss those of multi-token prediction.
void BoardFeed::add_routing(lens::TrainingScalars& scalars, const StepRecord& record) const {
  scalars.moe_losses = record.routing.losses;
  const std::size_t num_routing = record.routing.losses.size();
  for (std::size_t i = num_routing; i < record.auxiliary_losses.size(); ++i)
    scalars.losses.push_back(record.auxiliary_losses[i]);
  if (!config_.model.moe_per_layer_logging) return;
  for (std::size_t i = 0; i < num_routing; ++i) {
    std::vector<double> layers;
    for (const RoutedLayer& layer : record.routing.layers) layers.push_back(layer.losses[i].second);
    scalars.moe_layer_losses.emplace_back(record.routing.losses[i].first, std::move(layers));
  }
}

void BoardFeed::add_throughput(const StepRecord& record) {
  Window sum;
  for (const Window& step : window_) {
    sum.seconds += step.seconds;
    sum.samples += step.samples;
    sum.flops += step.flops;
  }
  if (sum.seconds <= 0) return;
  const auto add = [&](const std::string& name, double value) {
    file_->add_scalar("throughput/" + name, value, record.step);
    file_->add_scalar("throughput/device/" + name, value / static_cast<double>(world_size_), record.step);
  };
  add("tokens_per_sec", sum.samples * static_cast<double>(config_.model.seq_length) / sum.seconds);
  add("samples_per_sec", sum.samples / sum.seconds);
  add("batches_per_sec", static_cast<double>(window_.size()) / sum.seconds);
  file_->add_scalar("throughput/tflops", sum.flops / sum.seconds / 1e12, record.step);
  file_->add_scalar("throughput/tflops/device", sum.flops / sum.seconds / 1e12 / static_cast<double>(world_size_),
                    record.step);
}

void BoardFeed::add_timers(const StepRecord& record) {
  const auto add = [&](const char* name, std::int64_t duration_ns) {
    file_->add_scalar(name, static_cast<double>(duration_ns) / 1e9, record.step);
  };
  add("batch-generator-time", record.data_wait_ns);
  add("forward-backward-time", record.forward_backward_ns);
  add("optimizer-time", record.optimizer_ns);
}

void BoardFeed::evaluation(std::int64_t iteration, std::int64_t consumed_samples, const std::string& set_name,
                           double loss) {
  lens::ValidationScalars scalars;
  scalars.iteration = iteration;
  scalars.consumed_samples = consumed_samples;
  scalars.set_name = set_name;
  scalars.loss = loss;
  scalars.has_perplexity = config_.logger.log_validation_ppl_to_tensorboard;
  guarded([&] { lens::write_scalars(*file_, scalars); });
}

}  // namespace pharos::train

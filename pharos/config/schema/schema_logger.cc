// Section logger.
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {

void declare_logger(std::vector<Field>& fields) {
  SectionBuilder logger(fields, "logger", &RunConfig::logger);
  using C = LoggerConfig;
  logger.field("log_interval", &C::log_interval, "print the log line every N steps").unit("steps").min(1);
  logger.field("timing_log_level", &C::timing_log_level, "detail of timers").min(-1).max(2).hint();
  logger.field("timing_log_option", &C::timing_log_option, "how timers of ranks are combined").hint();
  logger.field("tensorboard_dir", &C::tensorboard_dir, "folder of TensorBoard files");
  logger.field("tensorboard_log_interval", &C::tensorboard_log_interval, "steps between TensorBoard points")
      .min(1)
      .with("logger.tensorboard_dir");
  logger
      .field("tensorboard_queue_size", &C::tensorboard_queue_size,
             "pending TensorBoard events; each log point is flushed")
      .min(1)
      .no_effect();
  logger.field("log_params_norm", &C::log_params_norm, "norm of the parameters in the log line");
  logger
      .field("log_l2_norm_grad_to_tensorboard", &C::log_l2_norm_grad_to_tensorboard,
             "gradient norm of each parameter to TensorBoard")
      .later("gradient norms of single parameters");
  logger.field("log_num_zeros_in_grad", &C::log_num_zeros_in_grad, "zeros of the gradient in the log line");
  logger.field("log_max_attention_logit", &C::log_max_attention_logit, "largest attention logit")
      .later("attention logit statistics");
  logger.field("log_throughput", &C::log_throughput, "throughput per device in the log line");
  logger.field("log_throughput_to_tensorboard", &C::log_throughput_to_tensorboard, "throughput to TensorBoard")
      .with("logger.tensorboard_dir");
  logger.field("throughput_window_size", &C::throughput_window_size, "steps a throughput is averaged over")
      .unit("steps")
      .min(1)
      .with("logger.tensorboard_dir");
  logger.field("log_progress", &C::log_progress, "append to progress.txt");
  logger.field("log_timers_to_tensorboard", &C::log_timers_to_tensorboard, "timers to TensorBoard")
      .with("logger.tensorboard_dir");
  logger.field("log_loss_scale_to_tensorboard", &C::log_loss_scale_to_tensorboard, "loss scale to TensorBoard")
      .with("logger.tensorboard_dir");
  logger.field("log_validation_ppl_to_tensorboard", &C::log_validation_ppl_to_tensorboard, "perplexity to TensorBoard")
      .with("logger.tensorboard_dir");
  logger.field("log_world_size_to_tensorboard", &C::log_world_size_to_tensorboard, "world size to TensorBoard")
      .with("logger.tensorboard_dir");
  logger.field("log_memory_to_tensorboard", &C::log_memory_to_tensorboard, "memory to TensorBoard")
      .with("logger.tensorboard_dir");
  logger.field("memory_keys", &C::memory_keys, "which counters of PyTorch's allocator").no_effect();
  logger.field("log_memory_interval", &C::log_memory_interval, "print the memory of the process every N steps")
      .unit("steps")
      .min(1);
  logger.field("log_device_memory_used", &C::log_device_memory_used, "print memory in use on the device").no_effect();
  logger.field("log_energy", &C::log_energy, "energy in the log line").later("energy counters");
  logger.field("logging_level", &C::logging_level, "10 debug, 20 info, 30 warning, 40 error")
      .min(0)
      .max(50)
      .no_effect();
  logger.field("filter_warnings", &C::filter_warnings, "drop warnings of Python libraries").hint();
  logger.field("modules_to_filter", &C::modules_to_filter, "Python modules whose messages are dropped").hint();
  logger.field("set_level_for_all_loggers", &C::set_level_for_all_loggers, "logging_level for Python libraries too")
      .hint();
  logger.field("save_config_filepath", &C::save_config_filepath,
               "also write the resolved configuration here; run.yaml is always written");
  logger.field("skip_train_metrics_log", &C::skip_train_metrics_log, "no log line for training steps");
  logger
      .field("peak_tflops_per_device", &C::peak_tflops_per_device,
             "hardware peak that MFU refers to; unset: no MFU is printed")
      .unit("TFLOP/s")
      .above(0)
      .own();
}

}  // namespace pharos::config

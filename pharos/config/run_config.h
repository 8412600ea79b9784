// The configuration of one run as plain structs. Field names and defaults are Megatron-Bridge's; schema.h declares for
// each of them type, documentation, range and what this release does with it. Nothing here validates or derives.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "pharos/config/enums.h"
#include "pharos/config/model_config.h"

namespace pharos::config {

/// Section `train`: iterations, batch sizes in samples, exits.
struct TrainConfig {
  std::optional<std::int64_t> micro_batch_size;   // required
  std::optional<std::int64_t> global_batch_size;  // required
  std::optional<std::int64_t> train_iters;        // exactly one of train_iters, train_samples
  std::optional<std::int64_t> train_samples;
  std::optional<std::vector<std::int64_t>> rampup_batch_size;  // [start, increment, samples]
  std::optional<std::string> step_batch_size_schedule;         // "0:768 250B:1536", thresholds in tokens
  bool decrease_batch_size_if_needed = false;
  std::int64_t empty_unused_memory_level = 0;
  std::optional<std::int64_t> check_weight_hash_across_dp_replicas_interval;
  std::optional<std::int64_t> train_sync_interval;
  bool check_optimizer_step_success = true;
  std::vector<std::int64_t> iterations_to_skip;
  std::optional<std::int64_t> exit_interval;
  std::optional<std::int64_t> exit_duration_in_mins;
  bool exit_signal_handler = false;
  ExitSignal exit_signal = ExitSignal::kTerm;
  double time_limit_margin_seconds = 30;
};

/// Section `optimizer`.
struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::kAdam;
  std::optional<double> lr;
  std::optional<double> min_lr;
  double weight_decay = 0.01;
  bool decoupled_weight_decay = true;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double muon_momentum = 0.95;
  bool muon_nesterov = false;
  std::int64_t muon_num_ns_steps = 5;
  std::string muon_scale_mode = "spectral";
  bool muon_split_qkv = true;
  std::string muon_tp_mode = "duplicated";
  double muon_extra_scale_factor = 1.0;
  std::string muon_scalar_optimizer = "adam";
  double sgd_momentum = 0.9;
  double clip_grad = 1.0;  // 0 disables
  double grad_norm_skip_threshold = std::numeric_limits<double>::infinity();
  bool fp16 = false;
  bool bf16 = false;
  DType params_dtype = DType::kFloat32;
  std::optional<double> loss_scale;  // constant scale; none means dynamic (fp16)
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;
  bool use_distributed_optimizer = false;
  bool use_precision_aware_optimizer = false;
  DType main_grads_dtype = DType::kFloat32;
  DType main_params_dtype = DType::kFloat32;
  DType exp_avg_dtype = DType::kFloat32;
  DType exp_avg_sq_dtype = DType::kFloat32;
  bool overlap_param_gather = false;
  std::optional<std::vector<std::string>> freeze;     // own addition: patterns of names whose weights stay
  std::optional<std::vector<std::string>> lr_scales;  // own addition: "PATTERN=FACTOR" on the learning rate
};

/// Section `scheduler`: learning rate and weight decay over the run.
struct SchedulerConfig {
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  std::optional<std::int64_t> lr_decay_iters;
  std::optional<std::int64_t> lr_decay_samples;
  std::int64_t lr_warmup_iters = 0;
  std::int64_t lr_warmup_samples = 0;
  std::optional<double> lr_warmup_fraction;
  double lr_warmup_init = 0.0;
  std::optional<std::int64_t> lr_wsd_decay_iters;
  std::optional<std::int64_t> lr_wsd_decay_samples;
  WsdDecayStyle lr_wsd_decay_style = WsdDecayStyle::kExponential;
  std::optional<double> start_weight_decay;
  std::optional<double> end_weight_decay;
  WeightDecayIncrStyle weight_decay_incr_style = WeightDecayIncrStyle::kConstant;
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
  std::optional<std::int64_t> max_steps;
};

/// Section `dataset`: GPT dataset over .bin/.idx prefixes; without data_path and blends the mock dataset.
struct DatasetConfig {
  std::optional<std::int64_t> seq_length;  // required
  std::int64_t random_seed = 1234;
  std::vector<std::string> data_path;                     // prefix, or [weight, prefix, weight, prefix, …]
  std::vector<std::string> blend;                         // same grammar as data_path
  std::vector<std::vector<std::string>> blend_per_split;  // three blends: train, valid, test
  std::optional<std::string> split;
  std::optional<std::string> path_to_cache;
  bool mmap_bin_files = true;
  std::int64_t num_dataset_builder_threads = 1;
  double mid_level_dataset_surplus = 0.005;
  bool fast_cache_load = false;
  bool defer_npy_index_mmap = false;
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  bool create_attention_mask = true;
  bool skip_getting_attention_mask_from_dataset = true;
  bool drop_last_partial_validation_sequence = true;
  bool add_extra_token_to_sequence = true;
  bool allow_ambiguous_pad_tokens = false;
  bool inter_document_masking = false;
  DataloaderType dataloader_type = DataloaderType::kSingle;
  std::int64_t num_workers = 2;
  bool data_sharding = true;
  bool pin_memory = true;
  bool drop_last = true;
  bool persistent_workers = true;
};

/// Section `logger`.
struct LoggerConfig {
  std::int64_t log_interval = 100;
  std::int64_t timing_log_level = 0;
  TimingLogOption timing_log_option = TimingLogOption::kMinMax;
  std::optional<std::string> tensorboard_dir;
  std::int64_t tensorboard_log_interval = 1;
  std::int64_t tensorboard_queue_size = 1000;
  bool log_params_norm = false;
  bool log_l2_norm_grad_to_tensorboard = false;
  bool log_num_zeros_in_grad = false;
  bool log_max_attention_logit = false;
  bool log_throughput = false;
  bool log_throughput_to_tensorboard = false;
  std::int64_t throughput_window_size = 100;
  bool log_progress = false;
  bool log_timers_to_tensorboard = false;
  bool log_loss_scale_to_tensorboard = true;
  bool log_validation_ppl_to_tensorboard = false;
  bool log_world_size_to_tensorboard = false;
  bool log_memory_to_tensorboard = false;
  std::optional<std::vector<std::string>> memory_keys;
  std::optional<std::int64_t> log_memory_interval;
  bool log_device_memory_used = false;
  bool log_energy = false;
  std::optional<std::int64_t> logging_level;
  bool filter_warnings = true;
  std::optional<std::vector<std::string>> modules_to_filter;
  bool set_level_for_all_loggers = false;
  std::optional<std::string> save_config_filepath;
  bool skip_train_metrics_log = false;
  std::optional<double> peak_tflops_per_device;  // own addition: hardware peak in TFLOP/s for the MFU columns
};

/// Section `tokenizer`.
struct TokenizerConfig {
  std::optional<TokenizerType> tokenizer_type;
  std::optional<std::string> tokenizer_model;
  std::optional<std::string> vocab_file;
  std::optional<std::string> merge_file;
  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> null_tokenizer_eod_id;
  std::int64_t make_vocab_size_divisible_by = 1;
  bool use_tokenizer_vocab_size = false;
  std::map<std::string, std::string> hf_tokenizer_kwargs;
};

/// Section `checkpoint`.
struct CheckpointConfig {
  std::optional<std::string> save;
  std::optional<std::string> load;
  std::optional<std::int64_t> save_interval;
  std::int64_t most_recent_k = -1;  // -1 keeps all
  std::optional<std::int64_t> save_retain_interval;
  bool save_optim = true;
  bool save_rng = true;
  bool load_optim = true;
  bool load_rng = true;
  bool load_main_params_from_ckpt = false;
  std::optional<std::int64_t> ckpt_step;
  bool exit_on_missing_checkpoint = false;
  bool finetune = false;
  std::optional<std::string> pretrained_checkpoint;
  CheckpointFormat ckpt_format = CheckpointFormat::kTorchDist;
  bool async_save = false;
  bool fully_parallel_save = true;
  bool fully_parallel_load = false;
  std::string dist_ckpt_strictness = "assume_ok_unexpected";
  bool dist_ckpt_optim_fully_reshardable = false;
  bool distrib_optim_fully_reshardable_mem_efficient = false;
  bool save_tokenizer_assets = true;
  bool also_save_hf_checkpoint = false;
  std::optional<std::string> hf_source_path;
  bool hf_trust_remote_code = false;
  bool hf_distributed_save = false;
  std::int64_t hf_save_every_n_ranks = 1;
};

/// Section `validation`.
struct ValidationConfig {
  std::int64_t eval_iters = 100;
  std::optional<std::int64_t> eval_interval;
  std::optional<std::int64_t> start_eval_at_iter;
  std::optional<std::int64_t> eval_global_batch_size;
  std::optional<std::int64_t> eval_micro_batch_size;
  bool skip_train = false;
};

/// Section `ddp`: gradient buffers and their reduction.
struct DdpConfig {
  bool use_distributed_optimizer = false;
  bool grad_reduce_in_fp32 = false;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool align_param_gather = false;
  bool average_in_collective = false;
  std::optional<std::int64_t> bucket_size;  // elements
  std::optional<std::int64_t> num_buckets;
  bool check_for_nan_in_grad = false;
  bool check_for_large_grads = false;
  std::int64_t num_distributed_optimizer_instances = 1;
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kNoShard;
};

/// Section `dist`: device, process groups.
struct DistConfig {
  DeviceKind device = DeviceKind::kCpu;  // own addition
  std::int64_t num_threads = 0;          // own addition: compute threads a process, 0 = all cores
  DistributedBackend distributed_backend = DistributedBackend::kNccl;
  std::int64_t distributed_timeout_minutes = 10;
  std::optional<std::int64_t> distributed_timeout_seconds_after_init;
  std::optional<std::int64_t> local_rank;
  bool align_grad_reduce = true;
  bool use_tp_pp_dp_mapping = false;
  bool use_gloo_process_groups = true;
  std::vector<std::string> high_priority_stream_groups;
  bool external_gpu_device_mapping = false;
};

/// Section `rng`.
struct RngConfig {
  std::int64_t seed = 1234;
};

/// Section `rerun_state_machine`: reaction to non-finite and spiky losses.
struct RerunStateMachineConfig {
  RerunMode rerun_mode = RerunMode::kDisabled;
  bool check_for_nan_in_loss = true;
  bool check_for_spiky_loss = false;
  double spiky_loss_factor = 10.0;
};

/// Section `profiling`; the window is in completed steps, [start, end).
struct ProfilingConfig {
  bool use_nsys_profiler = false;
  bool use_pytorch_profiler = false;
  std::int64_t profile_step_start = 10;
  std::int64_t profile_step_end = 12;
  std::vector<std::int64_t> profile_ranks = {0};
  bool pytorch_profiler_collect_shapes = false;
  bool pytorch_profiler_collect_callstack = false;
  bool pytorch_profiler_collect_chakra = false;
  bool record_shapes = false;
  bool nvtx_ranges = false;
  bool record_memory_history = false;
  std::string memory_snapshot_path = "memory_snapshot.json";
  bool network_counters = false;
  double network_counters_hz = 10;
  std::string network_counters_root = "/sys";
};

/// Section `mixed_precision`: `mixed_precision: bf16_mixed` or an object. When given, resolve() copies it onto the
/// fields of the same name in model, optimizer and ddp.
struct MixedPrecisionConfig {
  bool given = false;               // the section is not null; not a field
  std::optional<std::string> name;  // a named precision recipe
  bool fp32 = false;
  bool fp16 = false;
  bool bf16 = false;
  std::optional<DType> params_dtype;
  std::optional<DType> pipeline_dtype;
  bool grad_reduce_in_fp32 = true;
  std::optional<std::string> fp8;
  std::string fp8_recipe = "tensorwise";
  std::optional<std::string> fp4;
  std::optional<double> loss_scale;
  double initial_loss_scale = 4294967296.0;
  double min_loss_scale = 1.0;
  std::int64_t loss_scale_window = 1000;
  std::int64_t hysteresis = 2;
};

/// Section `comm_overlap`; a field without value is decided automatically.
struct CommOverlapConfig {
  bool given = false;                   // the section is not null; not a field
  std::optional<bool> tp_comm_overlap;  // required when the section is given
  std::optional<bool> overlap_p2p_comm;
  std::optional<bool> batch_p2p_comm;
  std::optional<bool> overlap_grad_reduce;
  std::optional<bool> overlap_param_gather;
  std::optional<bool> align_param_gather;
  std::optional<std::int64_t> bucket_size;  // elements
  std::optional<bool> overlap_moe_expert_parallel_comm;
  std::optional<bool> delay_wgrad_compute;
};

/// Section `telemetry` (own addition): what the lens records and where it goes. Environment variables and flags decide
/// over it (docs/observability/configuration.md).
struct TelemetryConfig {
  bool enabled = false;
  std::string service_name = "pharos";
  std::string span_groups = "default";
  std::string exporter = "otlp";
  std::string export_strategy = "single_rank";
  std::int64_t export_rank = -1;
  double export_sample_rate = 1.0;
  bool sampler_enabled = false;
  bool traces_enabled = true;
  bool metrics_enabled = true;
  bool logs_enabled = false;
  std::optional<std::string> run_id;
  bool ring = true;
};

/// Everything a run needs. Fields that Pharos stores without effect live in `stored` as YAML text by dotted name.
struct RunConfig {
  TrainConfig train;
  ModelConfig model;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  DatasetConfig dataset;
  LoggerConfig logger;
  TokenizerConfig tokenizer;
  CheckpointConfig checkpoint;
  ValidationConfig validation;
  DdpConfig ddp;
  DistConfig dist;
  RngConfig rng;
  RerunStateMachineConfig rerun_state_machine;
  ProfilingConfig profiling;
  MixedPrecisionConfig mixed_precision;
  CommOverlapConfig comm_overlap;
  TelemetryConfig telemetry;
  std::map<std::string, std::string> env_vars;
  std::map<std::string, std::string> stored;
};

}  // namespace pharos::config

// Sections train, validation, rng, rerun_state_machine, profiling, telemetry, env_vars.
#include "pharos/config/limits.h"
#include "pharos/config/schema/schema_builder.h"

namespace pharos::config {
namespace {

void declare_train(std::vector<Field>& fields) {
  SectionBuilder train(fields, "train", &RunConfig::train);
  using C = TrainConfig;
  train.field("micro_batch_size", &C::micro_batch_size, "samples one rank computes at once")
      .unit("samples")
      .min(1)
      .max(kMostBatch)
      .required();
  train.field("global_batch_size", &C::global_batch_size, "samples of one optimizer step, over all data-parallel ranks")
      .unit("samples")
      .min(1)
      .max(kMostBatch)
      .required();
  train.field("train_iters", &C::train_iters, "optimizer steps; exactly one of train_iters, train_samples must be set")
      .unit("steps")
      .min(1)
      .max(kMostSteps);
  train.field("train_samples", &C::train_samples, "samples to train on; converted into steps")
      .unit("samples")
      .min(1)
      .max(kMostSteps * kMostBatch);
  train.field(
      "rampup_batch_size", &C::rampup_batch_size,
      "[start, increment, samples]: the global batch size grows from start by increment in equal parts of samples; "
      "acts in Pharos, Megatron-Bridge ignores it");
  train.field(
      "step_batch_size_schedule", &C::step_batch_size_schedule,
      "\"0:768 250B:1536\": global batch size from each threshold of consumed tokens on (suffix K, M, B, T); acts in "
      "Pharos, Megatron-Bridge ignores it");
  train.field(
      "decrease_batch_size_if_needed", &C::decrease_batch_size_if_needed,
      "round the global batch size down to a multiple of micro_batch_size × data parallel size instead of stopping");
  train
      .field("empty_unused_memory_level", &C::empty_unused_memory_level,
             "return cached device memory: 1 after the backward pass, 2 also after the optimizer")
      .min(0)
      .max(2)
      .hint();
  train
      .field("check_weight_hash_across_dp_replicas_interval", &C::check_weight_hash_across_dp_replicas_interval,
             "compare a hash of the weights over data-parallel ranks every N steps")
      .unit("steps")
      .min(1)
      .one_rank();
  train
      .field("train_sync_interval", &C::train_sync_interval,
             "synchronise the device every N steps; every step ends with one here")
      .unit("steps")
      .min(1)
      .hint();
  train
      .field("check_optimizer_step_success", &C::check_optimizer_step_success,
             "a step counts as successful only if it was on every model-parallel rank")
      .one_rank();
  train.field("iterations_to_skip", &C::iterations_to_skip,
              "1-based iterations whose data is consumed but not trained on");
  train.field("exit_interval", &C::exit_interval, "save and leave when the step is a multiple of it")
      .unit("steps")
      .min(1);
  train.field("exit_duration_in_mins", &C::exit_duration_in_mins, "save and leave when the process has lived this long")
      .unit("minutes")
      .min(0);
  train.field("exit_signal_handler", &C::exit_signal_handler,
              "save and leave at the end of the step when exit_signal or SIGTERM arrives");
  train.field("exit_signal", &C::exit_signal, "the signal of exit_signal_handler");
  train
      .field("time_limit_margin_seconds", &C::time_limit_margin_seconds,
             "kept free before the end of the job (PHAROS_TIME_LIMIT_END or SLURM_JOB_END_TIME, seconds since 1970): a "
             "step or evaluation begins only if it and a save end before")
      .unit("seconds")
      .min(0)
      .own();
}

void declare_validation(std::vector<Field>& fields) {
  SectionBuilder validation(fields, "validation", &RunConfig::validation);
  using C = ValidationConfig;
  validation.field("eval_iters", &C::eval_iters, "global batches of one evaluation; 0 disables evaluation and test")
      .unit("batches")
      .min(0);
  validation.field("eval_interval", &C::eval_interval, "evaluate every N steps; unset: not within the loop")
      .unit("steps")
      .min(0);
  validation.field("start_eval_at_iter", &C::start_eval_at_iter, "no evaluation before this step").unit("steps").min(0);
  validation.field("eval_global_batch_size", &C::eval_global_batch_size, "default: train.global_batch_size")
      .unit("samples")
      .min(1);
  validation.field("eval_micro_batch_size", &C::eval_micro_batch_size, "default: train.micro_batch_size")
      .unit("samples")
      .min(1);
  validation.field("skip_train", &C::skip_train, "only evaluate");
}

void declare_guards(std::vector<Field>& fields) {
  SectionBuilder rng(fields, "rng", &RunConfig::rng);
  rng.field("seed", &RngConfig::seed, "seed of weights, dropout and shuffling; the same in every parallel layout")
      .above(0);

  SectionBuilder rerun(fields, "rerun_state_machine", &RunConfig::rerun_state_machine);
  using R = RerunStateMachineConfig;
  rerun.field("rerun_mode", &R::rerun_mode, "what to do with a suspicious result: nothing, recompute, or count")
      .later("re-running suspicious steps");
  rerun.field("check_for_nan_in_loss", &R::check_for_nan_in_loss, "a NaN or infinite loss ends the run");
  rerun.field("check_for_spiky_loss", &R::check_for_spiky_loss, "report a loss far above the recent ones");
  rerun.field("spiky_loss_factor", &R::spiky_loss_factor, "how far above counts as a spike")
      .above(1)
      .with("rerun_state_machine.check_for_spiky_loss");
}

void declare_profiling(std::vector<Field>& fields) {
  SectionBuilder profiling(fields, "profiling", &RunConfig::profiling);
  using P = ProfilingConfig;
  static constexpr const char* kProfilers = "profilers";
  profiling.field("use_nsys_profiler", &P::use_nsys_profiler, "capture the window with Nsight Systems");
  profiling.field("use_pytorch_profiler", &P::use_pytorch_profiler, "capture the window with Kineto").later(kProfilers);
  profiling.field("profile_step_start", &P::profile_step_start, "first completed step of the window")
      .unit("steps")
      .min(0);
  profiling.field("profile_step_end", &P::profile_step_end, "completed step the window ends before")
      .unit("steps")
      .min(0);
  profiling.field("profile_ranks", &P::profile_ranks, "ranks that profile; empty: every rank");
  profiling.field("pytorch_profiler_collect_shapes", &P::pytorch_profiler_collect_shapes, "record tensor shapes")
      .with("profiling.use_pytorch_profiler");
  profiling.field("pytorch_profiler_collect_callstack", &P::pytorch_profiler_collect_callstack, "record call stacks")
      .with("profiling.use_pytorch_profiler");
  profiling.field("pytorch_profiler_collect_chakra", &P::pytorch_profiler_collect_chakra, "write an execution trace")
      .with("profiling.use_pytorch_profiler");
  profiling.field("record_shapes", &P::record_shapes, "shapes in NVTX ranges").with("profiling.use_nsys_profiler");
  profiling.field("nvtx_ranges", &P::nvtx_ranges, "NVTX ranges around steps and spans")
      .with("profiling.use_nsys_profiler");
  profiling.field("record_memory_history", &P::record_memory_history, "record the allocator's history")
      .later(kProfilers);
  profiling.field("memory_snapshot_path", &P::memory_snapshot_path, "where the memory history is written")
      .with("profiling.record_memory_history");
  profiling
      .field("network_counters", &P::network_counters,
             "read the counters of network devices on every node (docs/cluster/counters.md)")
      .own();
  profiling.field("network_counters_hz", &P::network_counters_hz, "how often")
      .unit("samples per second")
      .min(0.001)
      .max(1000)
      .with("profiling.network_counters")
      .own();
  profiling
      .field("network_counters_root", &P::network_counters_root, "the folder that holds class/infiniband and class/net")
      .with("profiling.network_counters")
      .own();
}

void declare_telemetry(std::vector<Field>& fields) {
  SectionBuilder telemetry(fields, "telemetry", &RunConfig::telemetry);
  using T = TelemetryConfig;
  telemetry
      .field("enabled", &T::enabled,
             "send spans, metrics and logs to where OTEL_EXPORTER_OTLP_* says (docs/observability)")
      .own();
  telemetry.field("service_name", &T::service_name, "service.name of everything exported").own();
  telemetry.field("span_groups", &T::span_groups, "span groups to record: default, per_step, all, or a list of groups")
      .own();
  telemetry.field("exporter", &T::exporter, "otlp, console (JSON lines on standard output) or file (RUN/trace/*.jsonl)")
      .own();
  telemetry
      .field("export_strategy", &T::export_strategy,
             "which ranks export: single_rank, all_ranks, sampled or first_rank_per_node")
      .own();
  telemetry.field("export_rank", &T::export_rank, "rank that single_rank means; negative: the last").own();
  telemetry.field("export_sample_rate", &T::export_sample_rate, "share of ranks that sampled means")
      .min(0)
      .max(1)
      .own();
  telemetry.field("sampler_enabled", &T::sampler_enabled, "thin out spans by rank with the same share").own();
  telemetry.field("traces_enabled", &T::traces_enabled, "export spans").own();
  telemetry.field("metrics_enabled", &T::metrics_enabled, "export metrics").own();
  telemetry.field("logs_enabled", &T::logs_enabled, "export the lines of the log").own();
  telemetry.field("run_id", &T::run_id, "nemo.run.id; unset: of the job, else random").own();
  telemetry.field("ring", &T::ring, "keep the last events of each thread in a file that outlives the process").own();

  Field& environment = fields.emplace_back();
  environment.name = environment.section = "env_vars";
  environment.doc = "environment variables set at start unless already set; add with ++env_vars.NAME=value";
  environment.codec = &codec_of<std::map<std::string, std::string>>();
  environment.type = environment.codec->type_name;
  environment.default_value = Value::of_map({});
  environment.member = [](RunConfig& config) -> void* { return &config.env_vars; };
}

}  // namespace

void declare_training(std::vector<Field>& fields) {
  declare_train(fields);
  declare_validation(fields);
  declare_guards(fields);
  declare_profiling(fields);
  declare_telemetry(fields);
}

}  // namespace pharos::config

// The loop of a Trainer: steps, evaluation, saving, leaving (order of one pass: megatron-telemetry.md 1.4).
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/clock.h"
#include "pharos/base/memory.h"
#include "pharos/comm/flight.h"
#include "pharos/config/derived.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/lens/span.h"
#include "pharos/model/flops.h"
#include "pharos/model/stages.h"
#include "pharos/pipeline/report/report.h"
#include "pharos/train/forward_backward.h"
#include "pharos/train/trainer.h"

namespace pharos::train {

using lens::Group;

namespace {

/// Megatron prints the memory after the first three saves of a process.
constexpr int kReportedSaves = 3;

double seconds_since(std::int64_t start_ns) { return static_cast<double>(base::monotonic_ns() - start_ns) / 1e9; }

/// Most memory that was ever allocated on `device`; on the CPU: resident in this process.
std::int64_t peak_memory_bytes(const at::Device& device) {
  if (device.is_cpu()) return base::process_memory().peak_resident_bytes;
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(index);
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

}  // namespace

base::ExitCode Trainer::run() {
  progress_.append("Starting job");
  loop_start_ns_ = base::monotonic_ns();
  attempts_.begin_steps(state_.step);
  if (last_saved_step_ >= 0) attempts_.current().last_saved_step = last_saved_step_;
  durations_ = Durations(checkpoint_bytes());
  const auto& validation = config_.validation;
  lens::IntervalSpans intervals("megatron.train", config_.checkpoint.save_interval.value_or(0),
                                startup_span_.context());
  startup_span_.end();
  if (state_.step >= train_iters_ && !validation.skip_train) {
    console_.line(
        fmt::format("nothing to train: step {} of train.train_iters = {} is done", state_.step, train_iters_));
  }
  if (state_.step < train_iters_ && !validation.skip_train) {
    if (const auto stop = decide_stop(config_.train, exit_inputs(0, true))) return leave(*stop);
  }
  while (state_.step < train_iters_ && !validation.skip_train) {
    const std::int64_t pass_start = base::monotonic_ns();
    intervals.next_pass();
    start_checkpoint_section();
    if (is_skipped_by_request(state_.step + 1)) {
      skip_iteration();
      continue;
    }
    window_->before_step(state_.step);
    StepRecord record;
    {
      lens::ManagedSpan first;
      if (first_step_pending_) {
        first = lens::managed_span(Group::kFirstIteration, "megatron.train.first_iteration", {lens::kGoodput, true},
                                   {"megatron.iteration", state_.step});
      }
      record = run_iteration();
    }
    state_.step += 1;
    state_.consumed_train_samples += record.global_batch_size;
    comm::report_progress("step", state_.step);
    after_iteration(record);
    durations_.add_step(seconds_since(pass_start));
    const bool evaluates = validation.eval_interval && *validation.eval_interval > 0 && validation.eval_iters > 0 &&
                           state_.step >= validation.start_eval_at_iter.value_or(0) &&
                           state_.step % *validation.eval_interval == 0;
    if (evaluates && data_->has(DataSplit::kValidation))
      evaluate_and_report(DataSplit::kValidation, fmt::format("iteration {}", state_.step));
    window_->after_step(state_.step);
    const auto interval = config_.checkpoint.save_interval;
    const bool saves = interval && *interval > 0 && state_.step % *interval == 0;
    // What is left after this save counts.
    const double next_s = durations_.step_s() + (saves ? durations_.save_s() : 0);
    const auto decision = decide_exit(config_.train, state_.step, exit_inputs(next_s, true));
    const bool stops =
        decision && (decision->reason == ExitReason::kSignal || decision->reason == ExitReason::kTimeLimit);
    if (saves && !stops) save();
    if (decision && state_.step < train_iters_) return leave(*decision);
  }
  { PHAROS_SPAN(span, Group::kCheckpoint, "megatron.checkpoint.exit_finalize", {lens::kGoodput, true}); }
  intervals.finish();
  window_->leave();
  network_->finish();
  if (!validation.skip_train && saving_enabled() && last_saved_step_ != state_.step) save();
  report_pipeline();
  evaluate_at_end();
  comm::report_progress("leaving", state_.step);
  return base::ExitCode::kDone;
}

void Trainer::after_iteration(const StepRecord& executed) {
  PHAROS_SPAN(span, Group::kStep, "megatron.train.iteration_report", {lens::kGoodput, true});
  StepRecord record = executed;
  record.step = state_.step;
  record.consumed_samples = state_.consumed_train_samples;
  record.skipped_samples = state_.skipped_train_samples;
  record.flops = model::training_flops(config_.model, record.global_batch_size);
  record.full_attention_flops = model::full_attention_training_flops(config_.model, record.global_batch_size);
  state_.floating_point_operations_so_far += record.flops;
  job_flops_ += record.flops;
  if (config_.logger.log_params_norm) {
    PHAROS_SPAN(norm_span, Group::kStep, "megatron.train.params_norm", {lens::kGoodput, true});
    record.params_norm = optimizer_->params_norm();
  }
  if (first_step_pending_) first_step_done(record.step_time_ns);
  PHAROS_SPAN(log_span, Group::kStep, "megatron.train.log", {lens::kGoodput, true});
  network_->write();
  reporter_->step(record, peak_memory_bytes(device()));
  network_->after_step(state_.step);
  AttemptRecord& attempt = attempts_.current();
  attempt.last_step = state_.step;
  attempt.seconds.steps += static_cast<double>(record.step_time_ns) / 1e9;
  attempt.seconds.data_wait += static_cast<double>(record.data_wait_ns) / 1e9;
}

void Trainer::first_step_done(std::int64_t duration_ns) {
  first_step_pending_ = false;
  const auto first_step = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(duration_ns));
  // All ranks must allow a collective the same time: that of the slowest first step.
  const std::chrono::milliseconds slowest(static_cast<std::int64_t>(
      parallel_.all.reduce_value(static_cast<double>(first_step.count()), comm::ReduceOp::kMax, {"first step"})));
  if (watchdog_ != nullptr) watchdog_->set_step_timeout(step_timeout(config_.dist, slowest));
  if (config_.dist.distributed_timeout_seconds_after_init) {
    parallel_.world.set_timeout(step_timeout(config_.dist, slowest) + kWatchdogLead);
  }
  startup_.finish_phase("first step");
  console_.line(startup_.render());
  nlohmann::json phases = nlohmann::json::object();
  for (const auto& phase : startup_.phases()) phases[phase.name] = static_cast<double>(phase.duration_ns) / 1e6;
  metrics_->append({{"step", state_.step}, {"startup_ms", phases}});
}

LossSums Trainer::reduce(const LossSums& sums) {
  // As many numbers on every rank, whether it has a loss or not.
  std::vector<double> values{sums.loss, sums.tokens};
  const auto num_depths = static_cast<std::size_t>(config_.model.mtp_num_layers.value_or(0));
  for (std::size_t depth = 0; depth < num_depths; ++depth) {
    const LossSums own = depth < sums.predictions.size() ? sums.predictions[depth] : LossSums{};
    values.insert(values.end(), {own.loss, own.tokens});
  }
  values = parallel_.losses.reduce_values(std::move(values), comm::ReduceOp::kSum, {"loss"});
  LossSums all{.loss = values[0], .tokens = values[1]};
  for (std::size_t depth = 1; depth <= num_depths; ++depth)
    all.predictions.push_back({.loss = values[2 * depth], .tokens = values[2 * depth + 1]});
  return all;
}

ExitInputs Trainer::exit_inputs(double next_s, bool save_follows) {
  const std::int64_t elapsed_ns = base::monotonic_ns() - base::process_start_monotonic_ns();
  // Nanoseconds of a hundred days are exact in double precision.
  std::vector<double> values{static_cast<double>(SignalWatch::received()), static_cast<double>(elapsed_ns)};
  if (time_limit_end_) {
    // Rank 0's clock and measurements are those of all: nothing is smaller than what the others give.
    std::vector<double> of_limit(3, std::numeric_limits<double>::lowest());
    if (parallel_.is_first()) {
      of_limit = {*time_limit_end_ - static_cast<double>(base::wall_ns()) / 1e9, next_s,
                  save_follows && saving_enabled() ? durations_.save_s() : 0.0};
    }
    values.insert(values.end(), of_limit.begin(), of_limit.end());
  }
  values = parallel_.all.reduce_values(std::move(values), comm::ReduceOp::kMax, {"exit conditions"});
  ExitInputs inputs{.signal = static_cast<int>(values[0]), .elapsed_ns = static_cast<std::int64_t>(values[1])};
  if (time_limit_end_) {
    inputs.time_left_s = values[2];
    inputs.next_s = values[3];
    inputs.save_s = values[4];
  }
  return inputs;
}

std::int64_t Trainer::checkpoint_bytes() {
  std::int64_t bytes = 0;
  for (const checkpoint::Held& held : contents()) {
    if (held.values.defined()) bytes += static_cast<std::int64_t>(held.values.nbytes());
  }
  return bytes;
}

std::optional<double> Trainer::evaluate(DataSplit split) {
  PHAROS_SPAN(span, Group::kEvaluate, "megatron.evaluate");
  const std::int64_t batch = config::eval_global_batch_size_or_default(config_);
  const auto num_microbatches =
      static_cast<int>(batch / config::eval_micro_batch_size_or_default(config_) / parallel_.data.size());
  LossSums sums;
  for (std::int64_t i = 1; i <= config_.validation.eval_iters; ++i) {
    if (decide_stop(config_.train, exit_inputs(0, owes_save()))) return std::nullopt;
    PHAROS_SPAN(step_span, Group::kEvaluate, "megatron.evaluate.step", {"megatron.eval_iteration", i});
    comm::report_progress("evaluation", state_.step);
    const std::int64_t consumed = split == DataSplit::kValidation ? state_.consumed_valid_samples : (i - 1) * batch;
    const LossSums part = passes_->evaluate(
        num_microbatches, [&](int index) { return data_->microbatch(split, consumed, index, device()); });
    sums.loss += part.loss;
    sums.tokens += part.tokens;
    if (split == DataSplit::kValidation) state_.consumed_valid_samples += batch;
  }
  optimizer_->settle_values();
  if (span) span.set("megatron.eval_iters", config_.validation.eval_iters);
  return reduce(sums).mean();
}

bool Trainer::has_time_to_evaluate(DataSplit split, const std::string& place) {
  if (!time_limit_end_) return true;
  const std::int64_t samples = config_.validation.eval_iters * config::eval_global_batch_size_or_default(config_);
  const std::int64_t step_samples = batches_.at(state_.consumed_train_samples).running_global_batch_size;
  const ExitInputs inputs = exit_inputs(durations_.evaluation_s(split, samples, step_samples), owes_save());
  const double spare_s = *inputs.time_left_s - inputs.save_s - config_.train.time_limit_margin_seconds;
  if (inputs.next_s <= spare_s) return true;
  console_.line(
      fmt::format("evaluation at {} left out: needs about {:.1f} s, {:.1f} s are left before the end that the time "
                  "limit calls for",
                  place, inputs.next_s, std::max(0.0, spare_s)));
  return false;
}

void Trainer::evaluate_and_report(DataSplit split, const std::string& place) {
  // One that is left out or interrupted passes its samples over: later ones see what they would have seen.
  const std::int64_t consumed_after =
      state_.consumed_valid_samples +
      (split == DataSplit::kValidation
           ? config_.validation.eval_iters * config::eval_global_batch_size_or_default(config_)
           : 0);
  if (has_time_to_evaluate(split, place)) {
    const std::int64_t start = base::monotonic_ns();
    const std::optional<double> loss = evaluate(split);
    attempts_.current().seconds.evaluation += seconds_since(start);
    if (loss) {
      durations_.add_evaluation(split, seconds_since(start));
      reporter_->evaluation(place, split == DataSplit::kTest ? "test_loss" : "validation_loss", state_.step, *loss,
                            base::monotonic_ns() - start);
    } else {
      const bool is_signalled = exit_inputs(0, false).signal != 0;
      console_.line(fmt::format("the evaluation at {} is left unfinished: {}", place,
                                is_signalled ? "a signal came" : "the time limit is near"));
    }
  }
  state_.consumed_valid_samples = consumed_after;
}

void Trainer::evaluate_at_end() {
  if (config_.validation.eval_iters <= 0) return;
  if (data_->has(DataSplit::kValidation))
    evaluate_and_report(DataSplit::kValidation, fmt::format("iteration {} on validation set", state_.step));
  if (data_->has(DataSplit::kTest))
    evaluate_and_report(DataSplit::kTest, fmt::format("iteration {} on test set", state_.step));
}

/// Saves are finished when save() returns: these two spans of every pass, which Megatron's readers expect, hold
/// nothing. The launcher's report of a failure passes them over (launch/evidence.cc).
void Trainer::start_checkpoint_section() {
  { PHAROS_SPAN(span, Group::kCheckpoint, "megatron.checkpoint.ft_heartbeat", {lens::kGoodput, true}); }
  { PHAROS_SPAN(span, Group::kCheckpoint, "megatron.checkpoint.save.finalize", {lens::kGoodput, true}); }
}

void Trainer::save() {
  PHAROS_SPAN(exposed, Group::kCheckpoint, "megatron.checkpoint.exposed_save", {lens::kGoodput, true},
              {"megatron.iteration", state_.step});
  comm::report_progress("save", state_.step);
  const std::int64_t start = base::monotonic_ns();
  const std::int64_t size_bytes = write_checkpoint();
  comm::report_progress("step", state_.step);
  const std::int64_t duration_ns = base::monotonic_ns() - start;
  durations_.add_save(static_cast<double>(duration_ns) / 1e9);
  attempts_.current().seconds.save += static_cast<double>(duration_ns) / 1e9;
  attempts_.current().last_saved_step = state_.step;
  if (num_saves_++ < kReportedSaves) {
    PHAROS_SPAN(span, Group::kCheckpoint, "megatron.checkpoint.report_memory", {lens::kGoodput, true});
    reporter_->memory(fmt::format("after saving checkpoint of iteration {}", state_.step));
  }
  PHAROS_SPAN(span, Group::kStep, "megatron.checkpoint.timers_log", {lens::kGoodput, true});
  reporter_->checkpoint(state_.step, size_bytes, duration_ns);
}

std::int64_t Trainer::write_checkpoint() {
  PHAROS_SPAN(span, Group::kCheckpoint, "megatron.checkpoint.save", {lens::kGoodput, true},
              {"megatron.iteration", state_.step});
  state_.scheduler = schedule_->save();
  state_.optimizer = optimizer_->save_scalars();
  checkpoint::SaveOptions options;
  options.save = save_folder();
  options.most_recent_k = config_.checkpoint.most_recent_k;
  options.loaded_from = loaded_from_;
  options.run_config_yaml = config::to_yaml(resolved_);
  options.all_agree = [this](bool ok) {
    return parallel_.all.reduce_value(ok ? 1 : 0, comm::ReduceOp::kMin, {"save"}) == 1;
  };
  options.writer = writer_;
  checkpoint::Contents what = contents();
  if (!config_.checkpoint.save_optim) checkpoint::drop_state(what);
  const checkpoint::SaveResult result = checkpoint::save(what, state_, options, parallel_.mesh, parallel_.rank);
  last_saved_step_ = state_.step;
  progress_.append(
      saved_checkpoint_event(state_.step, job_flops_, static_cast<double>(base::monotonic_ns() - loop_start_ns_) / 1e9,
                             state_.floating_point_operations_so_far,
                             state_.consumed_train_samples * config_.model.seq_length, parallel_.world.size()));
  console_.line(render_saved_line(base::wall_ns(), state_.step, options.save.string()));
  return static_cast<std::int64_t>(result.size_bytes);
}

void Trainer::keep_measured(pipeline::MeasuredStep measured) {
  const bool is_kept = measured.step % config_.logger.log_interval == 0 || measured.step == train_iters_;
  if (measured_ == nullptr || !is_kept) return;
  measured.global_rank = parallel_.rank;
  measured.replica = parallel_.pipeline.ranks().front();
  try {
    measured_->append(measured);
  } catch (const base::UserError& error) {  // a full disk is no reason to end the run
    if (!std::exchange(has_lost_times_, true)) {
      console_.line("warning: the pipeline's times of step " + std::to_string(measured.step) +
                    " and perhaps of later ones are lost: " + error.parts().what);
    }
  }
}

void Trainer::report_pipeline() {
  if (measured_ == nullptr) return;
  parallel_.all.barrier({"measured steps"});
  if (!parallel_.is_first()) return;
  pipeline::ReportOptions options;
  for (const model::Stage& stage : model::stages_of(config_.model))
    options.layers.push_back(static_cast<int>(stage.num_layers));
  try {
    const std::string summary = pipeline::write_report_files(folder_.path(), options);
    console_.line(!summary.empty() ? summary
                                   : fmt::format("pipeline: nothing was measured, no step was logged "
                                                 "(logger.log_interval = {})",
                                                 config_.logger.log_interval));
  } catch (const base::UserError& error) {
    console_.line("warning: there is no report of the pipeline: " + error.parts().what);
  }
}

base::ExitCode Trainer::leave(const ExitDecision& decision) {
  window_->leave();
  network_->finish();
  attempts_.set_cause(decision.cause);
  // Without a step there is nothing that the next attempt would not do again.
  const bool has_stepped = attempts_.current().first_step != state_.step;
  if (saving_enabled() && has_stepped && last_saved_step_ != state_.step) save();
  { PHAROS_SPAN(span, Group::kCheckpoint, "megatron.checkpoint.exit_finalize", {lens::kGoodput, true}); }
  report_pipeline();
  console_.line(decision.message);
  if (saving_enabled() || !has_stepped) return base::ExitCode::kInterrupted;
  throw base::TrainingError(fmt::format(
      "The run stopped at step {} of {} without a checkpoint: checkpoint.save_interval = 0 disables saving.",
      state_.step, train_iters_));
}

}  // namespace pharos::train

#include "pharos/optim/schedule/batch_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pharos/base/error.h"
#include "pharos/config/grammar/batch_schedule.h"

namespace pharos::optim {
namespace {

[[noreturn]] void refuse_ramp(const std::array<std::int64_t, 3>& ramp, const std::string& why) {
  throw base::UserError(
      {.what = fmt::format("train.rampup_batch_size = [{}, {}, {}] cannot be followed.", ramp[0], ramp[1], ramp[2]),
       .why = why,
       .fix = "Give [start, increment, samples] with global_batch_size = start + a multiple of increment."});
}

void check_ramp(const std::array<std::int64_t, 3>& ramp, std::int64_t global_batch_size) {
  const auto [start, increment, samples] = ramp;
  if (start < 1 || increment < 1 || samples < 0) {
    refuse_ramp(ramp, "Start and increment must be at least 1, samples at least 0.");
  }
  if (start > global_batch_size || (global_batch_size - start) % increment != 0) {
    refuse_ramp(ramp, fmt::format("From {} in increments of {} it does not reach train.global_batch_size = {}.", start,
                                  increment, global_batch_size));
  }
}

/// Smallest count of consumed samples at which `index` increments are done: int(consumed / samples_each) >= index, in
/// the floating-point arithmetic of Megatron's rule.
std::int64_t first_sample_of(std::int64_t index, double samples_each) {
  auto sample = static_cast<std::int64_t>(std::floor(static_cast<double>(index) * samples_each));
  while (sample > 0 && std::floor(static_cast<double>(sample - 1) / samples_each) >= static_cast<double>(index))
    --sample;
  while (std::floor(static_cast<double>(sample) / samples_each) < static_cast<double>(index)) ++sample;
  return sample;
}

}  // namespace

BatchSchedule::BatchSchedule(const BatchScheduleOptions& options) {
  PHAROS_CHECK(options.micro_batch_size >= 1 && options.data_parallel_size >= 1 && options.seq_length >= 0,
               "sizes of a batch schedule must be positive");
  samples_per_microbatch_ = options.micro_batch_size * options.data_parallel_size;
  if (options.rampup_batch_size && options.step_batch_size_schedule) {
    throw base::UserError({.what = "train.rampup_batch_size and train.step_batch_size_schedule are both set.",
                           .why = "Each of them gives the global batch size.",
                           .fix = "Keep one of them."});
  }
  if (options.step_batch_size_schedule) {
    const std::int64_t tokens_per_sample = std::max<std::int64_t>(1, options.seq_length);
    for (const auto& step : config::parse_batch_schedule(*options.step_batch_size_schedule)) {
      steps_.push_back({step.first_token / tokens_per_sample, step.global_batch_size});
    }
  } else if (options.rampup_batch_size) {
    const auto [start, increment, samples] = *options.rampup_batch_size;
    check_ramp(*options.rampup_batch_size, options.global_batch_size);
    const std::int64_t num_increments = samples == 0 ? 0 : (options.global_batch_size - start) / increment;
    for (std::int64_t i = 0; i < num_increments; ++i) {
      const double samples_each = static_cast<double>(samples) / static_cast<double>(num_increments);
      steps_.push_back({first_sample_of(i, samples_each), start + i * increment});
    }
    steps_.push_back({samples, options.global_batch_size});
  } else {
    steps_.push_back({0, options.global_batch_size});
  }
  steps_.front().first_sample = 0;
  for (const Step& step : steps_) {
    const std::int64_t size = step.global_batch_size;
    const bool runs =
        options.decrease_batch_size_if_needed ? size >= samples_per_microbatch_ : size % samples_per_microbatch_ == 0;
    if (runs && size > 0) continue;
    throw base::UserError(
        {.what = fmt::format(
             "global batch size ({}) is not divisible by micro batch size ({}) times data parallel size ({}).", size,
             options.micro_batch_size, options.data_parallel_size),
         .where = "train",
         .why = options.decrease_batch_size_if_needed ? "Rounded down it would be 0 samples."
                                                      : "A step is a whole number of microbatches on every rank.",
         .fix = fmt::format(
             "Use a multiple of {}{}.", samples_per_microbatch_,
             options.decrease_batch_size_if_needed ? "" : ", or set train.decrease_batch_size_if_needed=true")});
  }
}

BatchSize BatchSchedule::size_of(const Step& step) const {
  const std::int64_t num_microbatches = step.global_batch_size / samples_per_microbatch_;
  return {num_microbatches, step.global_batch_size, num_microbatches * samples_per_microbatch_};
}

BatchSize BatchSchedule::at(std::int64_t consumed_samples) const {
  const auto after =
      std::upper_bound(steps_.begin(), steps_.end(), consumed_samples,
                       [](std::int64_t consumed, const Step& step) { return consumed < step.first_sample; });
  return size_of(after == steps_.begin() ? *after : *std::prev(after));
}

std::int64_t BatchSchedule::samples_after(std::int64_t num_steps) const {
  std::int64_t consumed = 0;
  for (auto step = steps_.begin(); num_steps > 0 && step != steps_.end(); ++step) {
    const std::int64_t size = size_of(*step).running_global_batch_size;
    std::int64_t num_here = num_steps;
    if (const auto next = std::next(step); next != steps_.end()) {
      const std::int64_t room = std::max<std::int64_t>(0, next->first_sample - consumed);
      num_here = std::min(num_steps, (room + size - 1) / size);
    }
    consumed += num_here * size;
    num_steps -= num_here;
  }
  return consumed;
}

BatchScheduleOptions batch_schedule_options(const config::RunConfig& config, std::int64_t data_parallel_size) {
  const auto& train = config.train;
  PHAROS_CHECK(train.global_batch_size && train.micro_batch_size, "batch sizes are not set");
  BatchScheduleOptions options;
  options.global_batch_size = *train.global_batch_size;
  options.micro_batch_size = *train.micro_batch_size;
  options.data_parallel_size = data_parallel_size;
  options.decrease_batch_size_if_needed = train.decrease_batch_size_if_needed;
  options.step_batch_size_schedule = train.step_batch_size_schedule;
  options.seq_length = config.dataset.seq_length.value_or(config.model.seq_length);
  if (const auto& ramp = train.rampup_batch_size) {
    if (ramp->size() != 3) {
      throw base::UserError({.what = fmt::format("train.rampup_batch_size has {} values.", ramp->size()),
                             .why = "It is [start, increment, samples].",
                             .fix = "Give three values, for example train.rampup_batch_size=[32,32,100000]."});
    }
    options.rampup_batch_size = {(*ramp)[0], (*ramp)[1], (*ramp)[2]};
  }
  return options;
}

}  // namespace pharos::optim

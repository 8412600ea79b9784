#include "pharos/pipeline/run_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/config/derived.h"
#include "pharos/config/grammar/batch_schedule.h"
#include "pharos/pipeline/schedule_file.h"

namespace pharos::pipeline {
namespace {

bool is_generated(const std::string& name) {
  const auto names = schedule_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The schedule in the file `path`, for as many microbatches as it has.
Schedule read_schedule(const config::ModelConfig& model, const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    std::string lower = path;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto nearest = base::nearest_names(lower, schedule_names());
    throw base::UserError({.what = fmt::format("There is no schedule '{}', and no {} of that name.", path,
                                               std::filesystem::exists(path) ? "regular file" : "file"),
                           .where = "model.pipeline_schedule",
                           .fix = nearest.empty()
                                      ? fmt::format("Use one of {}, or a file.", base::join(schedule_names(), ", "))
                                      : fmt::format("Did you mean {}?", base::join(nearest, " or "))});
  }
  Schedule schedule = schedule_from_file(path);
  const auto num_ranks = model.pipeline_model_parallel_size, num_chunks = config::num_model_chunks(model);
  if (schedule.num_ranks == num_ranks && schedule.num_chunks == num_chunks) return schedule;
  throw base::UserError(
      {.what = fmt::format("The schedule in '{}' is for {} ranks with {} model chunk{} each, not for {} with {}.", path,
                           schedule.num_ranks, schedule.num_chunks, schedule.num_chunks == 1 ? "" : "s", num_ranks,
                           num_chunks),
       .where = "model.pipeline_schedule",
       .fix = fmt::format("Use model.pipeline_model_parallel_size={} model.virtual_pipeline_model_parallel_size={}, or "
                          "another file.",
                          schedule.num_ranks, schedule.num_chunks)});
}

ScheduleShape shape_of(const config::ModelConfig& model, int num_microbatches) {
  ScheduleShape shape{.num_ranks = static_cast<int>(model.pipeline_model_parallel_size),
                      .num_chunks = static_cast<int>(config::num_model_chunks(model)),
                      .num_microbatches = num_microbatches};
  if (model.microbatch_group_size_per_vp_stage)
    shape.microbatch_group_size = static_cast<int>(*model.microbatch_group_size_per_vp_stage);
  return shape;
}

}  // namespace

Schedule schedule_of(const config::ModelConfig& model, int num_microbatches) {
  const std::string name = config::pipeline_schedule_or_default(model);
  if (name == "interleaved" && model.pipeline_model_parallel_size > 1 && config::num_model_chunks(model) == 1) {
    throw base::UserError({.what = "The interleaved schedule needs several model chunks per rank.",
                           .where = "model.pipeline_schedule",
                           .fix = "Set model.virtual_pipeline_model_parallel_size to 2 or more, or use 1f1b."});
  }
  if (is_generated(name)) return make_schedule(name, shape_of(model, num_microbatches));
  Schedule schedule = read_schedule(model, name);
  if (schedule.num_microbatches == num_microbatches) return schedule;
  throw base::UserError({.what = fmt::format("The schedule in '{}' is for {} microbatches, not for {}.", name,
                                             schedule.num_microbatches, num_microbatches),
                         .where = "model.pipeline_schedule",
                         .fix = fmt::format("Choose a global batch of {} microbatches for each data-parallel rank, "
                                            "without ramp-up, or another file.",
                                            schedule.num_microbatches)});
}

std::vector<std::vector<int>> stages_of_ranks(const config::ModelConfig& model) {
  const std::string name = config::pipeline_schedule_or_default(model);
  if (!is_generated(name)) return read_schedule(model, name).stage_of;
  const std::int64_t num_ranks = model.pipeline_model_parallel_size;
  std::vector<std::vector<int>> stages(static_cast<std::size_t>(num_ranks));
  for (std::int64_t stage = 0; stage < num_ranks * config::num_model_chunks(model); ++stage) {
    const std::int64_t rank = config::pipeline_rank_of_stage(model, stage);
    stages[static_cast<std::size_t>(rank)].push_back(static_cast<int>(stage));
  }
  return stages;
}

std::vector<int> ranks_of_stages(const config::ModelConfig& model) {
  const auto stages = stages_of_ranks(model);
  std::vector<int> ranks(stages.size() * stages.front().size());
  for (std::size_t rank = 0; rank < stages.size(); ++rank) {
    for (const int stage : stages[rank]) ranks[static_cast<std::size_t>(stage)] = static_cast<int>(rank);
  }
  return ranks;
}

Schedule forward_schedule(const config::ModelConfig& model, int num_microbatches) {
  Schedule forwards{
      .name = "forward", .num_microbatches = num_microbatches, .stage_of = stages_of_ranks(model), .actions = {}};
  forwards.num_ranks = static_cast<int>(forwards.stage_of.size());
  forwards.num_chunks = static_cast<int>(forwards.stage_of.front().size());
  for (const std::vector<int>& stages : forwards.stage_of) {
    std::vector<int> chunks(stages.size());
    std::iota(chunks.begin(), chunks.end(), 0);
    std::sort(chunks.begin(), chunks.end(), [&](int a, int b) { return stages[a] < stages[b]; });
    auto& actions = forwards.actions.emplace_back();
    // Sorted by (group, stage, microbatch) on all ranks: whatever an action waits for comes before it.
    for (int first = 0; first < num_microbatches; first += forwards.num_ranks) {
      const int end = std::min(first + forwards.num_ranks, num_microbatches);
      for (const int chunk : chunks) {
        for (int microbatch = first; microbatch < end; ++microbatch)
          actions.push_back({Phase::kForward, microbatch, chunk});
      }
    }
  }
  return forwards;
}

void check_microbatch_counts(const config::RunConfig& config, std::int64_t data_parallel) {
  if (config.model.pipeline_model_parallel_size == 1 || config.validation.skip_train) return;
  const std::int64_t unit = *config.train.micro_batch_size * data_parallel;
  for (const std::int64_t size : config::global_batch_sizes(config, data_parallel)) {
    try {
      schedule_of(config.model, static_cast<int>(size / unit));
    } catch (const base::UserError& error) {
      base::UserError::Parts parts = error.parts();
      parts.what = fmt::format("Steps of {} samples cannot run: {}", size, parts.what);
      if (parts.where.empty()) parts.where = "model.pipeline_schedule";
      parts.fix += fmt::format(
          "{}A microbatch is {} samples over all data-parallel ranks; see train.global_batch_size, "
          "train.rampup_batch_size and train.step_batch_size_schedule.",
          parts.fix.empty() ? "" : " ", unit);
      throw base::UserError(parts);
    }
  }
}

}  // namespace pharos::pipeline

#include "pharos/pipeline/schedules/generators.h"

#include <fmt/format.h>

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::pipeline {
namespace {

constexpr Phase F = Phase::kForward, B = Phase::kBackward;

/// Groups of `group` need `num_ranks` microbatches each, else a chunk's first output is late for the next chunk.
bool interleaves(int num_ranks, int num_microbatches, int group) {
  const int remainder = num_microbatches % group;
  return num_microbatches >= group && (remainder == 0 || remainder >= num_ranks);
}

void require_interleaved_count(int num_ranks, int num_microbatches, int group) {
  if (group < num_ranks) {
    throw base::UserError(
        {.what = fmt::format("microbatch_group_size_per_vp_stage = {} is less than the {} pipeline ranks.", group,
                             num_ranks),
         .why =
             "the first microbatch of a group reaches its next chunk only after all ranks; a smaller group would wait.",
         .fix = fmt::format("Use {} (the default) or more.", num_ranks)});
  }
  if (interleaves(num_ranks, num_microbatches, group)) return;
  std::vector<std::string> nearest;
  for (int below = num_microbatches - 1; below >= group && nearest.empty(); --below) {
    if (interleaves(num_ranks, below, group)) nearest.push_back(std::to_string(below));
  }
  int above = num_microbatches + 1;
  while (!interleaves(num_ranks, above, group)) ++above;
  nearest.push_back(std::to_string(above));
  throw_microbatch_count(
      "interleaved", num_ranks, num_microbatches,
      fmt::format("the count must be at least {0}, and a multiple of {0} or one with a remainder of at least {1} "
                  "(microbatch_group_size_per_vp_stage = {0}, {1} pipeline ranks)",
                  group, num_ranks),
      nearest);
}

/// (microbatch, chunk) of every forward, in the order of all ranks: group by group, and within it chunk by chunk.
std::vector<Action> interleaved_forwards(const Schedule& schedule, int group) {
  std::vector<Action> forwards;
  for (int first = 0; first < schedule.num_microbatches; first += group) {
    const int end = std::min(first + group, schedule.num_microbatches);
    for (int chunk = 0; chunk < schedule.num_chunks; ++chunk) {
      for (int microbatch = first; microbatch < end; ++microbatch) forwards.push_back({F, microbatch, chunk});
    }
  }
  return forwards;
}

/// `num_warmup` forwards, then one forward and one backward in turn, then the backwards that are left.
std::vector<Action> alternate(const std::vector<Action>& forwards, const std::vector<Action>& backwards,
                              std::size_t num_warmup) {
  std::vector<Action> actions;
  std::size_t backward = 0;
  for (std::size_t forward = 0; forward < forwards.size(); ++forward) {
    actions.push_back(forwards[forward]);
    if (forward >= num_warmup) actions.push_back(backwards[backward++]);
  }
  actions.insert(actions.end(), backwards.begin() + static_cast<std::ptrdiff_t>(backward), backwards.end());
  return actions;
}

std::vector<Action> all_microbatches(Phase phase, int num_microbatches) {
  std::vector<Action> actions;
  for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) actions.push_back({phase, microbatch, 0});
  return actions;
}

}  // namespace

Schedule empty_schedule(std::string name, int num_ranks, int num_chunks, int num_microbatches, Placement placement) {
  PHAROS_CHECK(num_ranks >= 1 && num_chunks >= 1 && num_microbatches >= 1,
               fmt::format("{} needs a rank, a chunk and a microbatch, got {}, {} and {}", name, num_ranks, num_chunks,
                           num_microbatches));
  Schedule schedule{.name = std::move(name),
                    .num_ranks = num_ranks,
                    .num_chunks = num_chunks,
                    .num_microbatches = num_microbatches,
                    .stage_of = {},
                    .actions = std::vector<std::vector<Action>>(num_ranks)};
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::vector<int> stages;
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const bool turned = placement == Placement::kFolded && chunk % 2 == 1;
      stages.push_back(chunk * num_ranks + (turned ? num_ranks - 1 - rank : rank));
    }
    schedule.stage_of.push_back(std::move(stages));
  }
  return schedule;
}

void throw_microbatch_count(const std::string& name, int num_ranks, int num_microbatches, const std::string& rule,
                            const std::vector<std::string>& nearest) {
  throw base::UserError(
      {.what = fmt::format("The {} schedule on {} pipeline ranks cannot run {} microbatches.", name, num_ranks,
                           num_microbatches),
       .where = "train.global_batch_size / (train.micro_batch_size x data-parallel size)",
       .why = rule + ".",
       .fix = fmt::format("Use {} microbatches (nearest allowed), or another schedule.", base::join(nearest, " or "))});
}

Schedule gpipe(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule("gpipe", num_ranks, 1, num_microbatches);
  const auto forwards = all_microbatches(F, num_microbatches), backwards = all_microbatches(B, num_microbatches);
  for (auto& actions : schedule.actions) actions = alternate(forwards, backwards, forwards.size());
  return schedule;
}

Schedule one_forward_one_backward(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule("1f1b", num_ranks, 1, num_microbatches);
  const auto forwards = all_microbatches(F, num_microbatches), backwards = all_microbatches(B, num_microbatches);
  for (int rank = 0; rank < num_ranks; ++rank) {
    schedule.actions[rank] = alternate(forwards, backwards, static_cast<std::size_t>(num_ranks - 1 - rank));
  }
  return schedule;
}

Schedule interleaved(int num_ranks, int num_chunks, int num_microbatches, int microbatch_group_size) {
  if (num_chunks == 1) {
    Schedule schedule = one_forward_one_backward(num_ranks, num_microbatches);
    schedule.name = "interleaved";
    return schedule;
  }
  Schedule schedule = empty_schedule("interleaved", num_ranks, num_chunks, num_microbatches);
  require_interleaved_count(num_ranks, num_microbatches, microbatch_group_size);
  const std::vector<Action> forwards = interleaved_forwards(schedule, microbatch_group_size);
  std::vector<Action> backwards = forwards;
  for (Action& action : backwards) action = {B, action.microbatch, num_chunks - 1 - action.chunk};
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int num_warmup = 2 * (num_ranks - 1 - rank) + (num_chunks - 1) * microbatch_group_size;
    schedule.actions[rank] = alternate(forwards, backwards, static_cast<std::size_t>(num_warmup));
  }
  return schedule;
}

Schedule forward_only(int num_ranks, int num_microbatches) {
  Schedule schedule = empty_schedule("forward_only", num_ranks, 1, num_microbatches);
  for (auto& actions : schedule.actions) actions = all_microbatches(F, num_microbatches);
  return schedule;
}

std::vector<std::string> schedule_names() { return {"gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipev"}; }

namespace {

void require_chunks(const std::string& name, const ScheduleShape& shape, int num_chunks) {
  if (shape.num_chunks == num_chunks) return;
  throw base::UserError(
      {.what = fmt::format("The {} schedule has {} model chunk{} per rank, not {}.", name, num_chunks,
                           num_chunks == 1 ? "" : "s", shape.num_chunks),
       .where = "model.virtual_pipeline_model_parallel_size",
       .fix = num_chunks == 1
                  ? fmt::format("Leave it out (a layout has {} stages then), or use the interleaved schedule.",
                                shape.num_ranks)
                  : fmt::format("Use {}, or a model.pipeline_model_parallel_layout of {} stages.", num_chunks,
                                num_chunks * shape.num_ranks)});
}

}  // namespace

Schedule make_schedule(const std::string& name, const ScheduleShape& shape) {
  if (name == "interleaved") {
    return interleaved(shape.num_ranks, shape.num_chunks, shape.num_microbatches,
                       shape.microbatch_group_size.value_or(shape.num_ranks));
  }
  struct Generator {
    const char* name;
    int num_chunks;
    Schedule (*generate)(int num_ranks, int num_microbatches);
  };
  const Generator generators[] = {{"gpipe", 1, gpipe},
                                  {"1f1b", 1, one_forward_one_backward},
                                  {"zb1p", 1, zero_bubble_1p},
                                  {"zbv", 2, zero_bubble_v},
                                  {"dualpipev", 2, dual_pipe_v}};
  for (const Generator& generator : generators) {
    if (name != generator.name) continue;
    require_chunks(name, shape, generator.num_chunks);
    return generator.generate(shape.num_ranks, shape.num_microbatches);
  }
  const auto nearest = base::nearest_names(name, schedule_names());
  throw base::UserError({.what = fmt::format("There is no schedule '{}'.", name),
                         .fix = nearest.empty() ? fmt::format("Use one of {}.", base::join(schedule_names(), ", "))
                                                : fmt::format("Did you mean {}?", base::join(nearest, " or "))});
}

}  // namespace pharos::pipeline

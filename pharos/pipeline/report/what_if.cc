#include "pharos/pipeline/report/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/pipeline/dependencies.h"
#include "pharos/pipeline/render.h"

namespace pharos::pipeline {
namespace {

/// Sums over intervals of equal length: value i covers [i, i + 1) of `values.size()`.
std::vector<double> resampled_sums(const std::vector<double>& values, int num_stages) {
  const auto num_old = static_cast<std::int64_t>(values.size());
  std::vector<double> sums(static_cast<std::size_t>(num_stages), 0);
  // In units of 1 / (old x new) of the model, where all boundaries are whole numbers.
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    for (std::int64_t old = 0; old < num_old; ++old) {
      const std::int64_t overlap =
          std::min((stage + 1) * num_old, (old + 1) * num_stages) - std::max(stage * num_old, old * num_stages);
      if (overlap > 0) sums[stage] += values[old] * static_cast<double>(overlap) / static_cast<double>(num_stages);
    }
  }
  return sums;
}

double total_time(const StageCosts& costs, std::size_t stage) {
  return costs.forward[stage] + costs.backward[stage] + costs.weight[stage];
}

double mean_hop(const StageCosts& costs) {
  const double num_hops = static_cast<double>(std::max<std::size_t>(1, costs.transfer.size() - 1));
  return std::accumulate(costs.transfer.begin(), costs.transfer.end() - 1, 0.0) / num_hops;
}

StageCosts evenly_resampled(const StageCosts& costs, int num_stages) {
  const auto num_old = static_cast<std::int64_t>(costs.forward.size());
  StageCosts result;
  result.forward = resampled_sums(costs.forward, num_stages);
  result.backward = resampled_sums(costs.backward, num_stages);
  result.weight = resampled_sums(costs.weight, num_stages);
  result.activation_bytes = resampled_sums(costs.activation_bytes, num_stages);
  result.weight_bytes = resampled_sums(costs.weight_bytes, num_stages);
  const double mean = mean_hop(costs);
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    const std::int64_t boundary = (stage + 1) * num_old;  // of the model, in 1 / (old x new)
    result.transfer.push_back(boundary % num_stages == 0 ? costs.transfer[boundary / num_stages - 1] : mean);
  }
  return result;
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// Sums of what the layers have; a layer has its part of its stage's value. What a stage without layers has is lost in
/// the middle and stays at the ends.
std::vector<double> restaged_sums(const std::vector<double>& values, const std::vector<int>& layers,
                                  const std::vector<int>& new_layers) {
  std::vector<double> by_layer;
  for (std::size_t stage = 0; stage < layers.size(); ++stage)
    by_layer.insert(by_layer.end(), static_cast<std::size_t>(layers[stage]), values[stage] / layers[stage]);
  std::vector<double> sums;
  auto next = by_layer.begin();
  for (const int count : new_layers) {
    sums.push_back(std::accumulate(next, next + count, 0.0));
    next += count;
  }
  if (layers.front() == 0) sums.front() += values.front();
  if (layers.back() == 0) sums.back() += values.back();
  return sums;
}

int num_chunks_of(const std::string& name, const Schedule& current) {
  if (name == "zbv" || name == "dualpipev") return 2;
  return name == "interleaved" ? std::max(2, current.num_chunks) : 1;
}

std::string arguments_of(const Alternative& other, const Schedule& current) {
  std::string arguments = "model.pipeline_schedule=" + other.schedule;
  if (other.num_chunks == current.num_chunks) return arguments;
  // A layout says how many chunks there are, but must not differ from a number that the run has set.
  if (other.layers.empty() || current.num_chunks > 1)
    arguments += fmt::format(" model.virtual_pipeline_model_parallel_size={}", other.num_chunks);
  return other.layers.empty() ? arguments : arguments + " " + layout_argument(other.layers);
}

Alternative alternative(const std::string& name, const Schedule& current, const StageCosts& costs,
                        const std::vector<int>& layers) {
  Alternative result;
  result.schedule = name;
  result.num_chunks = num_chunks_of(name, current);
  const int num_stages = current.num_ranks * result.num_chunks;
  if (!layers.empty()) result.layers = divided_layers(layers, num_stages);
  try {
    const Schedule schedule = make_schedule(name, {.num_ranks = current.num_ranks,
                                                   .num_chunks = result.num_chunks,
                                                   .num_microbatches = current.num_microbatches});
    const Timeline timeline = simulate(schedule, resampled(costs, num_stages, layers));
    result.arguments = arguments_of(result, current);
    result.span = timeline.span;
    result.bubble = timeline.bubble;
    result.peak_rank_shares = peak_rank_shares(timeline);
    result.peak_bytes = timeline.peak_bytes;
  } catch (const base::UserError& error) {
    result.obstacle = error.parts().what;
    if (result.obstacle.ends_with('.')) result.obstacle.pop_back();
    if (!error.parts().why.empty()) result.obstacle += ": " + error.parts().why;
  }
  return result;
}

/// The costs of the stages with other numbers of layers: phases keep their shares of the stage's time.
StageCosts costs_with(const StageCosts& costs, const LayerTimes& times, const std::vector<int>& layers) {
  StageCosts changed = costs;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    double time = layers[stage] * times.per_layer[stage];
    if (stage == 0) time += times.first_extra;
    if (stage + 1 == layers.size()) time += times.last_extra;
    const double before = total_time(costs, stage);
    // A stage that had no time has nothing to divide by: a third for each phase.
    for (auto* phase : {&changed.forward, &changed.backward, &changed.weight})
      (*phase)[stage] = before > 0 ? (*phase)[stage] * time / before : time / 3;
  }
  return changed;
}

/// One layer after the other to the rank that then has least to do, there to a stage that has not yet as many as
/// `before`, and of those to the one that has least to do.
std::vector<int> balanced_layers(const Schedule& schedule, const LayerTimes& times, const std::vector<int>& before) {
  const int num_layers = std::accumulate(before.begin(), before.end(), 0);
  const auto holders = stage_holders(schedule);
  std::vector<int> layers(holders.size(), 0);
  std::vector<double> of_stage(holders.size(), 0), of_rank(static_cast<std::size_t>(schedule.num_ranks), 0);
  of_stage.front() += times.first_extra;
  of_stage.back() += times.last_extra;
  for (std::size_t stage = 0; stage < holders.size(); ++stage) of_rank[holders[stage].rank] += of_stage[stage];
  for (int layer = 0; layer < num_layers; ++layer) {
    const auto after = [&](std::size_t stage) {
      return std::tuple(of_rank[holders[stage].rank] + times.per_layer[stage], layers[stage] >= before[stage],
                        of_stage[stage] + times.per_layer[stage]);
    };
    std::size_t best = 0;
    for (std::size_t stage = 1; stage < holders.size(); ++stage) {
      if (after(stage) < after(best)) best = stage;
    }
    ++layers[best];
    of_stage[best] += times.per_layer[best];
    of_rank[holders[best].rank] += times.per_layer[best];
  }
  return layers;
}

}  // namespace

StageCosts restaged(const StageCosts& costs, const std::vector<int>& layers, const std::vector<int>& new_layers) {
  PHAROS_CHECK(
      std::accumulate(layers.begin(), layers.end(), 0) == std::accumulate(new_layers.begin(), new_layers.end(), 0),
      "other stages of another number of layers");
  if (new_layers == layers) return costs;
  const LayerTimes times = layer_times(costs, layers);
  const std::size_t last = layers.size() - 1;
  StageCosts result;
  for (const auto phase : {&StageCosts::forward, &StageCosts::backward, &StageCosts::weight}) {
    const double first_extra = share(times.first_extra, total_time(costs, 0)) * (costs.*phase)[0];
    const double last_extra = share(times.last_extra, total_time(costs, last)) * (costs.*phase)[last];
    std::vector<double> of_layers = costs.*phase;
    of_layers.front() -= first_extra;
    of_layers.back() -= last_extra;
    result.*phase = restaged_sums(of_layers, layers, new_layers);
    (result.*phase).front() += first_extra;
    (result.*phase).back() += last_extra;
  }
  result.activation_bytes = restaged_sums(costs.activation_bytes, layers, new_layers);
  result.weight_bytes = restaged_sums(costs.weight_bytes, layers, new_layers);
  const double mean = mean_hop(costs);
  int before = 0;  // layers
  for (const int count : new_layers) {
    before += count;
    int measured_before = 0;
    double transfer = mean;
    for (std::size_t hop = 0; hop < last; ++hop) {
      measured_before += layers[hop];
      if (measured_before == before) transfer = costs.transfer[hop];
    }
    result.transfer.push_back(transfer);
  }
  return result;
}

std::vector<int> divided_layers(const std::vector<int>& layers, int num_stages) {
  const auto num_old = static_cast<std::int64_t>(layers.size());
  std::vector<int> divided;
  std::int64_t before = 0;  // layers before the stage
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    const std::int64_t end = (stage + 1) * num_old, whole = end / num_stages, part = end % num_stages;
    const std::int64_t layers_before = std::accumulate(layers.begin(), layers.begin() + whole, std::int64_t{0}) +
                                       (part > 0 ? layers[static_cast<std::size_t>(whole)] * part / num_stages : 0);
    divided.push_back(static_cast<int>(layers_before - before));
    before = layers_before;
  }
  return divided;
}

StageCosts resampled(const StageCosts& costs, int num_stages, const std::vector<int>& layers) {
  if (static_cast<std::size_t>(num_stages) == costs.forward.size()) return costs;
  if (layers.size() < 2) return evenly_resampled(costs, num_stages);
  return restaged(costs, layers, divided_layers(layers, num_stages));
}

std::vector<Alternative> other_schedules(const Schedule& schedule, const StageCosts& costs,
                                         const std::vector<int>& layers) {
  std::vector<Alternative> alternatives;
  for (const std::string& name : schedule_names()) {
    if (name != schedule.name) alternatives.push_back(alternative(name, schedule, costs, layers));
  }
  std::stable_sort(alternatives.begin(), alternatives.end(), [](const Alternative& left, const Alternative& right) {
    return std::pair(!left.obstacle.empty(), left.span) < std::pair(!right.obstacle.empty(), right.span);
  });
  return alternatives;
}

LayerTimes layer_times(const StageCosts& costs, const std::vector<int>& layers) {
  const std::size_t num_stages = layers.size(), last = num_stages - 1;
  PHAROS_CHECK(num_stages >= 2 && num_stages == costs.forward.size(),
               fmt::format("layers of {} stages, costs of {}", num_stages, costs.forward.size()));
  double middle_time = 0;
  int middle_layers = 0;
  for (std::size_t stage = 1; stage < last; ++stage) {
    if (layers[stage] == 0) continue;
    middle_time += total_time(costs, stage);
    middle_layers += layers[stage];
  }
  if (middle_layers == 0) {
    middle_time = total_time(costs, 0);
    middle_layers = layers.front();
  }
  if (middle_layers == 0) {
    middle_time = total_time(costs, last);
    middle_layers = std::max(1, layers.back());
  }
  const double per_layer = middle_time / middle_layers;
  LayerTimes times;
  times.per_layer.assign(num_stages, per_layer);
  for (std::size_t stage = 1; stage < last; ++stage) {
    if (layers[stage] > 0) times.per_layer[stage] = total_time(costs, stage) / layers[stage];
  }
  const auto end = [&](std::size_t stage, double& extra) {
    const double time = total_time(costs, stage);
    extra = std::max(0.0, time - layers[stage] * per_layer);
    // An end that is faster than the middle has faster layers.
    if (layers[stage] > 0) times.per_layer[stage] = (time - extra) / layers[stage];
  };
  end(0, times.first_extra);
  end(last, times.last_extra);
  return times;
}

std::string layout_argument(const std::vector<int>& layers) {
  std::vector<std::string> stages;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    std::string text = stage == 0 ? "E" : "";
    if (layers[stage] > 0) text += layers[stage] == 1 ? "t" : fmt::format("t*{}", layers[stage]);
    stages.push_back(stage + 1 == layers.size() ? text + "L" : text);
  }
  return fmt::format("'model.pipeline_model_parallel_layout=\"{}\"'", base::join(stages, "|"));
}

std::optional<Split> better_split(const Schedule& schedule, const StageCosts& costs, const std::vector<int>& layers) {
  if (layers.size() < 2) return std::nullopt;
  const LayerTimes times = layer_times(costs, layers);
  Split split;
  split.layers = balanced_layers(schedule, times, layers);
  if (split.layers == layers) return std::nullopt;
  split.costs = costs_with(costs, times, split.layers);
  const Timeline timeline = simulate(schedule, split.costs);
  if (timeline.span >= simulate(schedule, costs).span * (1 - 1e-6)) return std::nullopt;
  split.arguments = layout_argument(split.layers);
  split.span = timeline.span;
  split.bubble = timeline.bubble;
  return split;
}

}  // namespace pharos::pipeline

#include "pharos/plan/render.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <vector>

#include "pharos/base/text.h"
#include "pharos/pipeline/render.h"

namespace pharos::plan {
namespace {

using base::format_bytes;
using base::format_count;

/// Columns on a terminal: bytes of UTF-8 that do not continue a character.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

class Page {
 public:
  void heading(const std::string& text) { text_ += (text_.empty() ? "" : "\n") + text + "\n"; }
  void line(const std::string& text) { text_ += "  " + text + "\n"; }
  /// A label, a value right-aligned behind it, and what explains it.
  void row(const std::string& label, const std::string& value, const std::string& remark = "") {
    const std::size_t label_width = std::max<std::size_t>(38, width_of(label)), value_width = width_of(value);
    text_ += "  " + label + std::string(label_width - width_of(label), ' ');
    text_ += std::string(value_width < 12 ? 12 - value_width : 1, ' ') + value;
    if (!remark.empty()) text_ += "   " + remark;
    text_ += "\n";
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string grouped(std::int64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) text.insert(text.begin() + at, ',');
  return text;
}

std::string flops_text(double flops) {
  static constexpr const char* kUnits[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"};
  std::size_t unit = 0;
  for (; flops >= 1000 && unit + 1 < std::size(kUnits); ++unit) flops /= 1000;
  return fmt::format("{:.3g} {}", flops, kUnits[unit]);
}

void add_parameters(Page& page, const Plan& plan) {
  const ParameterPlan& parameters = plan.parameters;
  page.heading("Parameters");
  const bool several = plan.mesh.world_size() > 1;
  for (const ComponentParameters& component : parameters.components) {
    if (component.total == 0) continue;
    page.row(component.name, format_count(static_cast<double>(component.total)),
             grouped(component.total) + (several ? "; on a rank " + grouped(component.on_rank) : ""));
  }
  page.row("total", format_count(static_cast<double>(parameters.total)), grouped(parameters.total));
  if (parameters.active != parameters.total) {
    page.row("active for a token", format_count(static_cast<double>(parameters.active)), grouped(parameters.active));
  }
  if (plan.mesh.world_size() > 1) {
    const std::int64_t on_rank = parameters.ranks[static_cast<std::size_t>(parameters.largest_rank)].elements;
    page.row("on the rank with the most", format_count(static_cast<double>(on_rank)), grouped(on_rank));
  }
}

void add_memory(Page& page, const Plan& plan) {
  const MemoryPlan& memory = plan.memory;
  page.heading(
      fmt::format("Memory of one rank at its peak ({}, pipeline rank {})", memory.phase, memory.pipeline_rank));
  for (const MemoryPart& part : memory.parts) {
    if (part.bytes > 0) page.row(part.label, format_bytes(part.bytes));
  }
  page.row("peak", format_bytes(memory.peak_bytes));
  for (std::size_t rank = 0; memory.peak_bytes_of_ranks.size() > 1 && rank < memory.peak_bytes_of_ranks.size();
       ++rank) {
    page.row(fmt::format("peak of pipeline rank {}", rank), format_bytes(memory.peak_bytes_of_ranks[rank]));
  }
  if (memory.worst_peak_bytes > 0)
    page.row("peak if routing were as uneven as can be", format_bytes(memory.worst_peak_bytes),
             "all tokens of all ranks to the experts of one rank");
  page.heading("Megatron's theoretical estimate, for comparison (16-bit, its own formulas)");
  for (const std::string& line : plan.megatron_lines) page.line(line);
}

void add_communication(Page& page, const CommunicationPlan& communication) {
  if (communication.parts.empty()) return;
  page.heading(fmt::format("Communication: sent by one rank in a step, and as much received (pipeline rank {})",
                           communication.pipeline_rank));
  for (const CommunicationPart& part : communication.parts) {
    page.row(fmt::format("{}: {}", part.dimension, part.purpose), format_bytes(part.bytes()),
             fmt::format("{} {} of {} over {} ranks", part.calls, part.operation, format_bytes(part.whole_bytes),
                         part.ranks));
  }
  page.row("in all", format_bytes(communication.bytes()));
}

std::string counted(std::int64_t count, const std::string& noun, const std::string& ending = "s") {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : ending);
}

/// "1.20 GiB, 4 rank shares": activations kept at once.
std::string in_flight_text(double shares, double peak_bytes) {
  const std::string count = fmt::format("{:.4g} rank share{}", shares, shares == 1 ? "" : "s");
  return format_bytes(peak_bytes) + ", " + count;
}

/// "step 11.4 rank times, 8 without a bubble".
std::string step_text(const PipelinePlan& pipeline) {
  return fmt::format("step {:.4g} {}, {:.4g} without a bubble", pipeline.timeline.span, pipeline.costs.time_unit,
                     pipeline.ideal_span());
}

/// Stages one after the other, on neighbouring pipeline ranks, of which the same is to be said.
struct StageRange {
  std::size_t first = 0, last = 0;
  std::int64_t step = 0;  ///< from one stage's rank to the next one's
};

std::vector<StageRange> ranges_of(const std::vector<ModelChunk>& chunks, const std::vector<std::string>& texts) {
  std::vector<StageRange> ranges;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::int64_t step = i == 0 ? 0 : chunks[i].pipeline_rank - chunks[i - 1].pipeline_rank;
    if (i > 0 && texts[i] == texts[i - 1] && (step == 1 || step == -1) &&
        (ranges.back().step == 0 || ranges.back().step == step)) {
      ranges.back().last = i;
      ranges.back().step = step;
    } else {
      ranges.push_back({i, i, 0});
    }
  }
  return ranges;
}

/// "stage 0 on rank 0", "stages 1–14 on ranks 1–14".
std::string stages_text(const StageRange& range, const std::vector<ModelChunk>& chunks, const char* rank) {
  const std::int64_t first = chunks[range.first].pipeline_rank, last = chunks[range.last].pipeline_rank;
  if (range.first == range.last) return fmt::format("stage {} on {} {}", range.first, rank, first);
  return fmt::format("stages {}–{} on {}s {}–{}", range.first, range.last, rank, first, last);
}

void add_stages(Page& page, const PipelinePlan& pipeline) {
  const pipeline::StageCosts& costs = pipeline.costs.costs;
  page.line(fmt::format("Costs of a microbatch in {}, from {}:", pipeline.costs.time_unit, pipeline.costs.source));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < pipeline.chunks.size(); ++i) {
    const ModelChunk& chunk = pipeline.chunks[i];
    std::string line =
        fmt::format("{}: forward {:.3g}, backward {:.3g}, weight {:.3g}", counted(chunk.num_layers, "layer"),
                    costs.forward[i], costs.backward[i], costs.weight[i]);
    if (i + 1 < pipeline.chunks.size() && costs.transfer[i] > 0)
      line += fmt::format(", transfer {:.3g}", costs.transfer[i]);
    line += "; keeps " + format_bytes(costs.activation_bytes[i]);
    if (costs.weight_bytes[i] > 0) line += ", until the weight gradient " + format_bytes(costs.weight_bytes[i]);
    texts.push_back(std::move(line));
  }
  for (const StageRange& range : ranges_of(pipeline.chunks, texts))
    page.line(stages_text(range, pipeline.chunks, "rank") + ", " + texts[range.first]);
}

/// The same model and batch by every schedule, the shortest step first.
void add_schedules(Page& page, const PipelinePlan& pipeline) {
  page.line("By schedule: bubble, step, and the most activations of a rank:");
  bool has_footnote = false;
  for (const OtherSchedule& other : pipeline.schedules) {
    const bool is_noted = pipeline.has_measured_times && other.refusal.empty() && !other.has_planned_stages;
    has_footnote = has_footnote || is_noted;
    const std::string label =
        fmt::format("{}{}{}{}", other.name, other.num_chunks > 1 ? fmt::format(", {} chunks", other.num_chunks) : "",
                    is_noted ? " *" : "", other.is_planned ? " (this plan)" : "");
    if (!other.refusal.empty()) {
      page.row(label, "-", other.refusal);
      continue;
    }
    page.row(label, fmt::format("{:.1f} %", 100 * other.bubble),
             fmt::format("step {:.4g} {}; {}", other.span, pipeline.costs.time_unit,
                         in_flight_text(other.peak_rank_shares, other.peak_bytes)));
  }
  if (has_footnote)
    page.line("* other stages than were measured: their times are put together from the measured layers");
}

void add_pipeline(Page& page, const PipelinePlan& pipeline) {
  const pipeline::Timeline& timeline = pipeline.timeline;
  const pipeline::Schedule& schedule = timeline.schedule;
  page.heading(fmt::format("Pipeline: {}, {} ranks with {} each, {} a step", schedule.name, schedule.num_ranks,
                           counted(schedule.num_chunks, "model chunk"),
                           counted(schedule.num_microbatches, "microbatch", "es")));
  page.row("bubble of all ranks", fmt::format("{:.1f} %", 100 * timeline.bubble), step_text(pipeline));
  page.row("of it", "", bubble_causes(pipeline));
  if (const auto& better = pipeline.better_layout) {
    page.row("with a better layout", fmt::format("{:.1f} %", 100 * better->bubble),
             fmt::format("step {:.4g} {}: {}", better->span, pipeline.costs.time_unit, better->arguments));
  }
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const pipeline::RankTimeline& line = timeline.ranks[rank];
    const RankTransfers& moved = pipeline.transfers[rank];
    const bool is_busiest = pipeline.busiest_rank == static_cast<int>(rank);
    page.row(fmt::format("rank {}: bubble{}", rank, is_busiest ? " (busiest)" : ""),
             fmt::format("{:.1f} %", 100 * line.bubble),
             fmt::format("activations at most {}; sends {} in {}, receives {} in {}",
                         in_flight_text(pipeline::rank_shares(line.peak_in_flight, schedule), line.peak_bytes),
                         format_bytes(moved.sent_bytes), counted(moved.num_sent, "transfer"),
                         format_bytes(moved.received_bytes), counted(moved.num_received, "transfer")));
  }
  add_stages(page, pipeline);
  add_schedules(page, pipeline);
}

void add_run(Page& page, const Plan& plan) {
  const StepPlan& steps = plan.steps;
  page.heading("Run");
  page.row("steps", grouped(steps.iterations));
  page.row("global batch size", grouped(steps.global_batch_size),
           fmt::format("sequences a step: {} tokens, {} a rank", grouped(std::llround(steps.tokens_per_step)),
                       counted(steps.num_microbatches, "microbatch", "es")));
  page.row("samples", grouped(steps.samples));
  page.row("tokens", format_count(steps.tokens));
  if (plan.dataset.is_mock) page.row("data", "mock");
  for (const DataFile& file : plan.dataset.files) {
    if (!file.found) continue;
    const std::string epochs = file.epochs ? fmt::format(", {:.3g} epochs of its training part", *file.epochs) : "";
    page.row("data " + file.prefix, format_count(static_cast<double>(file.tokens)), "tokens" + epochs);
  }
  page.row("floating-point operations a step", flops_text(plan.flops.step),
           "backward counted twice, attention causal; full attention " + flops_text(plan.flops.full_attention_step));
  page.row("floating-point operations a token", flops_text(plan.flops.token));
  page.row("floating-point operations of the run", flops_text(plan.flops.total));
  const EvaluationPlan& evaluations = plan.evaluations;
  page.row("evaluations", grouped(evaluations.during_training + evaluations.at_end),
           evaluations.samples_each > 0 ? fmt::format("of {} sequences each; {} after the last step",
                                                      grouped(evaluations.samples_each), evaluations.at_end)
                                        : "");
  const CheckpointPlan& checkpoint = plan.checkpoint;
  page.row("checkpoint", format_bytes(checkpoint.size_bytes), grouped(std::llround(checkpoint.size_bytes)) + " bytes");
  page.row("checkpoints saved", grouped(checkpoint.num_saves),
           checkpoint.num_saves == 0
               ? "none: checkpoint.save_interval = 0"
               : fmt::format("{} kept: {}", checkpoint.num_kept, format_bytes(checkpoint.kept_bytes())));
}

void add_chunks(Page& page, const std::vector<ModelChunk>& chunks) {
  std::vector<std::string> texts;
  for (const ModelChunk& chunk : chunks) {
    texts.push_back(fmt::format("{}{}{}{}", chunk.embedding ? "embedding, " : "", counted(chunk.num_layers, "layer"),
                                chunk.num_prediction_layers > 0 ? ", multi-token prediction" : "",
                                chunk.output ? ", output" : ""));
  }
  for (const StageRange& range : ranges_of(chunks, texts)) {
    page.line(fmt::format("{}: {}{}, from layer {}", stages_text(range, chunks, "pipeline rank"), texts[range.first],
                          range.first == range.last ? "" : " each", chunks[range.first].first_layer));
  }
}

void add_layout(Page& page, const Plan& plan, bool with_ranks) {
  const comm::Mesh& mesh = plan.mesh;
  page.heading("Layout");
  page.row("ranks", grouped(mesh.world_size()));
  std::string sizes;
  for (const comm::MeshDim dim : plan.dims) {
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", comm::mesh_dim_name(dim), mesh.size(dim));
  }
  page.line(sizes);
  if (plan.chunks.size() > 1) add_chunks(page, plan.chunks);
  if (!with_ranks) return;
  std::vector<comm::MeshDim> dims;
  std::copy_if(plan.dims.begin(), plan.dims.end(), std::back_inserter(dims),
               [&](comm::MeshDim dim) { return mesh.size(dim) > 1; });
  for (const comm::MeshDim dim : dims) {
    std::string line = fmt::format("{} groups:", comm::mesh_dim_name(dim));
    for (const auto& group : mesh.groups({dim})) line += fmt::format(" [{}]", fmt::join(group, " "));
    page.line(line);
  }
  for (std::int64_t rank = 0; !dims.empty() && rank < mesh.world_size(); ++rank) {
    std::string coordinates, groups;
    for (const comm::MeshDim dim : dims) {
      const char* name = comm::mesh_dim_name(dim);
      coordinates += fmt::format(" {} {}", name, mesh.coordinate(rank, dim));
      groups += fmt::format(" {} [{}]", name, fmt::join(mesh.group(rank, {dim}), " "));
    }
    page.line(fmt::format("rank {}:{}; in groups{}", rank, coordinates, groups));
  }
}

}  // namespace

std::string render(const Plan& plan, bool with_ranks) {
  Page page;
  page.heading(fmt::format("Plan of {} on {} rank{}", plan.recipe.empty() ? "the configuration" : plan.recipe,
                           plan.mesh.world_size(), plan.mesh.world_size() == 1 ? "" : "s"));
  add_parameters(page, plan);
  add_memory(page, plan);
  add_communication(page, plan.communication);
  if (plan.pipeline) add_pipeline(page, *plan.pipeline);
  add_run(page, plan);
  add_layout(page, plan, with_ranks);
  if (!plan.notes.empty()) page.heading("Notes");
  for (const std::string& note : plan.notes) page.line(note);
  return page.take();
}

}  // namespace pharos::plan

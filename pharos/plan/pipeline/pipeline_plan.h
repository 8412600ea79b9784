// What a pipeline will do in a step: every action's time, the bubble, activations in flight, transfers, and what other
// schedules would give.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/config/resolve.h"
#include "pharos/pipeline/simulate.h"
#include "pharos/plan/pipeline/stage_costs.h"
#include "pharos/plan/stages.h"

namespace pharos::plan {

/// What one pipeline rank sends to and receives from others in a step.
struct RankTransfers {
  std::int64_t num_sent = 0;
  std::int64_t num_received = 0;
  double sent_bytes = 0;
  double received_bytes = 0;
};

/// The same model and batch under one of the schedules that Pharos knows.
struct OtherSchedule {
  std::string name;
  bool is_planned = false;      ///< the schedule of the configuration
  std::int64_t num_chunks = 1;  ///< model chunks of a rank
  std::string refusal;          ///< why it cannot run; the rest has no meaning then
  double bubble = 0;
  double span = 0;                 ///< of a step, in the time unit of the plan
  double peak_bytes = 0;           ///< activations of the rank that needs most
  double peak_rank_shares = 0;     ///< pipeline::peak_rank_shares()
  bool has_planned_stages = true;  ///< false: its stages are others
};

/// Another split of the layers for the planned schedule, with a shorter step.
struct BetterLayout {
  std::string arguments;  ///< that set it on the command line, quoted for a shell
  double span = 0;
  double bubble = 0;
};

struct PipelinePlan {
  pipeline::Timeline timeline;  ///< of one step at the final global batch size
  PlannedCosts costs;
  std::vector<ModelChunk> chunks;        ///< [stage]
  double boundary_bytes = 0;             ///< of one transfer
  std::vector<RankTransfers> transfers;  ///< [pipeline rank]
  /// Parts of the bubble, fractions of the span, that add up to it: what equal stages without transfers would have,
  /// what the stages' own times add, what transfers add.
  double bubble_schedule = 0, bubble_imbalance = 0, bubble_transfers = 0;
  std::optional<int> busiest_rank;  ///< nothing when all ranks have as much to do
  std::optional<BetterLayout> better_layout;
  /// Of all names, the planned one among them unless it is from a file; shortest step first, refused ones last.
  std::vector<OtherSchedule> schedules;
  bool has_measured_times = false;

  double ideal_span() const;  ///< without any bubble
};

/// `resolved` must be valid for the mesh's world size. `costs_run`: the folder of a run whose measured times to use
/// instead of operations. UserError when the schedule cannot run the microbatches of a global batch size of
/// the run (pipeline::check_microbatch_counts), and from costs_from_run().
PipelinePlan plan_pipeline(const config::ResolvedConfig& resolved, const comm::Mesh& mesh,
                           const std::optional<std::filesystem::path>& costs_run = std::nullopt);

/// The schedule of `config` for a step at its final global batch size.
pipeline::Schedule planned_schedule(const config::RunConfig& config, const comm::Mesh& mesh);

/// "27.3 % schedule, +15.1 imbalance; rank 3 is the busiest": the bubble's parts that add up to it.
std::string bubble_causes(const PipelinePlan& plan);

/// The plan's timeline as text, with the order of every rank, or as SVG.
std::string render_timeline_text(const PipelinePlan& plan);
std::string render_timeline_svg(const PipelinePlan& plan);

}  // namespace pharos::plan

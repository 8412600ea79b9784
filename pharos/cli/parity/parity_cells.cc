#include "pharos/cli/parity/parity_cells.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::cli {
namespace {

/// What is divided over data-parallel ranks, and how their traffic goes.
struct Sharding {
  const char* suffix;
  const char* strategy;
  bool overlaps;
};

constexpr Sharding kPlain{"", "no_shard", false};
constexpr Sharding kOverlap{"-overlap", "no_shard", true};
constexpr Sharding kZero1{"-zero1", "optim", true};
constexpr Sharding kZero2{"-zero2", "optim_grads", true};
constexpr Sharding kZero3{"-zero3", "optim_grads_params", true};

/// How the layers go over pipeline ranks.
struct Stages {
  std::int64_t ranks = 1;
  const char* schedule = "1f1b";
  std::int64_t chunks = 1;
  bool counts_embedding = false;  ///< as a layer of the first stage
};

/// How experts go over ranks, and how tokens reach them.
struct Experts {
  std::int64_t ranks = 1;         ///< EP
  std::int64_t tensor_ranks = 0;  ///< ETP; 0: as model.expert_tensor_parallel_size is by itself
  const char* dispatcher = "";    ///< empty: that of the recipe
};

struct Layout {
  std::int64_t tensor = 1;
  bool sequence = false;
  std::int64_t context = 1;
  bool gathers = false;  ///< keys and values, instead of passing them round
  Experts experts = {};
  Stages stages = {};
  std::int64_t data = 1;
  Sharding sharding = kPlain;
};

std::string name_of(const Layout& layout) {
  std::vector<std::string> words;
  const auto word = [&](const char* dimension, std::int64_t size) {
    if (size > 1) words.push_back(dimension + std::to_string(size));
  };
  word("tp", layout.tensor);
  if (layout.sequence) words.emplace_back("sp");
  word("cp", layout.context);
  if (layout.gathers) words.emplace_back("gather");
  word("pp", layout.stages.ranks);
  if (layout.stages.ranks > 1) words.emplace_back(layout.stages.schedule);
  if (layout.stages.counts_embedding) words.emplace_back("uneven");
  word("ep", layout.experts.ranks);
  word("etp", layout.experts.tensor_ranks);
  if (*layout.experts.dispatcher != '\0') words.emplace_back(layout.experts.dispatcher);
  word("dp", layout.data);
  return words.empty() ? "one-rank" : base::join(words, "-") + layout.sharding.suffix;
}

ParityCell make_cell(const Layout& layout) {
  const auto text = [](bool value) { return std::string(value ? "true" : "false"); };
  const Stages& stages = layout.stages;
  const std::string shards = layout.sharding.strategy;
  const bool is_pipelined = stages.ranks > 1;
  ParityCell cell;
  cell.name = name_of(layout);
  cell.world_size = layout.tensor * layout.context * stages.ranks * layout.data;
  cell.overrides = {
      "model.tensor_model_parallel_size=" + std::to_string(layout.tensor),
      "model.sequence_parallel=" + text(layout.sequence),
      "model.context_parallel_size=" + std::to_string(layout.context),
      std::string("model.cp_comm_type=") + (layout.gathers ? "[all_gather]" : "null"),
      "model.pipeline_model_parallel_size=" + std::to_string(stages.ranks),
      std::string("model.pipeline_schedule=") + (is_pipelined ? stages.schedule : "null"),
      "model.virtual_pipeline_model_parallel_size=" + (stages.chunks > 1 ? std::to_string(stages.chunks) : "null"),
      "model.pipeline_model_parallel_layout=null",
      "model.num_layers_in_first_pipeline_stage=null",
      "model.num_layers_in_last_pipeline_stage=null",
      "model.account_for_embedding_in_pipeline_split=" + text(stages.counts_embedding),
      "model.account_for_loss_in_pipeline_split=false",
      "model.expert_model_parallel_size=" + std::to_string(layout.experts.ranks),
      "model.expert_tensor_parallel_size=" +
          (layout.experts.tensor_ranks > 0 ? std::to_string(layout.experts.tensor_ranks) : "null"),
      "ddp.data_parallel_sharding_strategy=" + shards,
      "ddp.use_distributed_optimizer=" + text(shards == "optim"),
      "ddp.overlap_grad_reduce=" + text(layout.sharding.overlaps),
      "ddp.overlap_param_gather=" + text(layout.sharding.overlaps && shards != "no_shard")};
  if (const std::string dispatcher = layout.experts.dispatcher; !dispatcher.empty()) {
    cell.overrides.push_back("model.moe_token_dispatcher_type=" + dispatcher);
    if (dispatcher == "flex") cell.overrides.emplace_back("model.moe_flex_dispatcher_backend=native");
    if (dispatcher == "allgather") cell.overrides.emplace_back("model.moe_shared_expert_overlap=false");
  }
  return cell;
}

constexpr Stages k1F1B{2}, k1F1BOf4{4}, kInterleaved{2, "interleaved", 2}, kZb1p{2, "zb1p"}, kZbv{2, "zbv", 2},
    kDualPipeV{2, "dualpipev", 2};

/// Pipelines: every schedule, and what they are combined with.
std::vector<Layout> pipeline_layouts() {
  std::vector<Layout> layouts;
  for (const Stages& stages : {Stages{2, "gpipe"}, k1F1B, kInterleaved, kZb1p, kZbv, kDualPipeV, Stages{4, "gpipe"},
                               k1F1BOf4, Stages{4, "interleaved", 2}, Stages{4, "zb1p"}, Stages{4, "zbv", 2},
                               Stages{4, "dualpipev", 2}, Stages{3, "1f1b", 1, true}, Stages{3, "zb1p", 1, true}}) {
    layouts.push_back({.stages = stages});
  }
  for (const Sharding& sharding : {kPlain, kOverlap, kZero1, kZero2, kZero3})
    layouts.push_back({.stages = k1F1B, .data = 2, .sharding = sharding});
  for (const Sharding& sharding : {kOverlap, kZero1, kZero2, kZero3}) {
    layouts.push_back({.stages = kInterleaved, .data = 2, .sharding = sharding});
    layouts.push_back({.stages = kZbv, .data = 2, .sharding = sharding});
  }
  layouts.push_back({.stages = kZb1p, .data = 2, .sharding = kZero3});
  layouts.push_back({.tensor = 2, .stages = k1F1B});
  layouts.push_back({.tensor = 2, .sequence = true, .stages = kZb1p});
  layouts.push_back({.tensor = 2, .sequence = true, .stages = kDualPipeV});
  layouts.push_back({.tensor = 2, .sequence = true, .stages = k1F1B, .data = 2, .sharding = kZero1});
  layouts.push_back({.tensor = 2, .sequence = true, .stages = kZbv, .data = 2, .sharding = kZero2});
  layouts.push_back({.stages = k1F1BOf4, .data = 2, .sharding = kZero3});
  return layouts;
}

/// Sequences divided over ranks, and what they are combined with.
std::vector<Layout> context_layouts() {
  std::vector<Layout> layouts;
  for (const std::int64_t context : {2, 4}) {
    for (const bool gathers : {false, true}) layouts.push_back({.context = context, .gathers = gathers});
  }
  for (const Sharding& sharding : {kPlain, kZero1, kZero2, kZero3})
    layouts.push_back({.context = 2, .data = 2, .sharding = sharding});
  layouts.push_back({.tensor = 2, .context = 2});
  layouts.push_back({.tensor = 2, .sequence = true, .context = 2});
  layouts.push_back({.tensor = 2, .sequence = true, .context = 2, .gathers = true});
  layouts.push_back({.context = 2, .stages = k1F1B});
  layouts.push_back({.context = 2, .stages = kZbv, .data = 2, .sharding = kZero1});
  layouts.push_back({.tensor = 2, .sequence = true, .context = 2, .stages = kZb1p});
  layouts.push_back({.tensor = 2, .sequence = true, .context = 2, .data = 2, .sharding = kZero3});
  return layouts;
}

/// Experts divided over ranks, which are those of the other dimensions: on models without experts they are skipped.
std::vector<Layout> expert_layouts() {
  std::vector<Layout> layouts;
  for (const char* dispatcher : {"allgather", "alltoall", "flex"}) {
    layouts.push_back({.experts = {2, 0, dispatcher}, .data = 2});
    layouts.push_back({.tensor = 2, .sequence = true, .experts = {2, 0, dispatcher}});
    layouts.push_back({.tensor = 2, .sequence = true, .experts = {2, 2, dispatcher}, .data = 2});
  }
  constexpr Experts kTwo{2, 0, "alltoall"};
  for (const Sharding& sharding : {kPlain, kOverlap, kZero1, kZero2, kZero3})
    layouts.push_back({.experts = kTwo, .data = 4, .sharding = sharding});
  layouts.push_back({.experts = {4, 0, "alltoall"}, .data = 4, .sharding = kZero1});
  layouts.push_back({.tensor = 2, .sequence = true, .experts = {1, 2, "alltoall"}});
  layouts.push_back({.tensor = 2, .sequence = true, .experts = {1, 1, "alltoall"}});
  layouts.push_back({.tensor = 2, .sequence = true, .experts = {4, 0, "alltoall"}, .data = 2, .sharding = kZero2});
  layouts.push_back({.context = 2, .experts = kTwo});
  layouts.push_back({.tensor = 2, .sequence = true, .context = 2, .experts = kTwo, .data = 2, .sharding = kZero1});
  layouts.push_back({.experts = kTwo, .stages = k1F1B, .data = 2});
  layouts.push_back({.experts = kTwo, .stages = kZb1p, .data = 2, .sharding = kZero1});
  layouts.push_back({.experts = kTwo, .stages = kZbv, .data = 2, .sharding = kZero2});
  layouts.push_back({.experts = kTwo, .stages = kInterleaved, .data = 2, .sharding = kZero3});
  layouts.push_back({.tensor = 2, .sequence = true, .experts = {2, 0, "flex"}, .stages = k1F1B});
  return layouts;
}

}  // namespace

ParityCell parity_reference() { return make_cell({}); }

const std::vector<ParityCell>& parity_cells() {
  static const std::vector<ParityCell> cells = [] {
    std::vector<Layout> layouts;
    for (const std::int64_t data : {2, 4}) {
      for (const Sharding& sharding : {kPlain, kOverlap, kZero1, kZero2, kZero3})
        layouts.push_back({.data = data, .sharding = sharding});
    }
    for (const std::int64_t tensor : {2, 4}) {
      for (const bool sequence : {false, true}) layouts.push_back({.tensor = tensor, .sequence = sequence});
    }
    for (const Sharding& sharding : {kPlain, kZero1, kZero2, kZero3}) {
      for (const bool sequence : {false, true})
        layouts.push_back({.tensor = 2, .sequence = sequence, .data = 2, .sharding = sharding});
    }
    layouts.push_back({.tensor = 4, .sequence = true, .data = 2, .sharding = kZero3});
    layouts.push_back({.tensor = 2, .sequence = true, .data = 4, .sharding = kZero1});
    layouts.push_back({.data = 8, .sharding = kZero2});
    for (const auto& more : {pipeline_layouts(), context_layouts(), expert_layouts()})
      layouts.insert(layouts.end(), more.begin(), more.end());
    std::vector<ParityCell> all;
    for (const Layout& layout : layouts) all.push_back(make_cell(layout));
    return all;
  }();
  return cells;
}

std::vector<ParityCell> select_parity_cells(const std::vector<std::string>& names) {
  if (names.empty()) return parity_cells();
  std::vector<std::string> known;
  for (const ParityCell& cell : parity_cells()) known.push_back(cell.name);
  std::vector<ParityCell> chosen;
  for (const std::string& name : names) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      const auto nearest = base::nearest_names(name, known);
      throw base::UserError({.what = "There is no parity cell '" + name + "'.",
                             .where = "--cells",
                             .why = "The cells are " + base::join(known, ", ") + ".",
                             .fix = nearest.empty() ? "Choose from these." : "Did you mean " + nearest.front() + "?"});
    }
    const bool is_chosen =
        std::any_of(chosen.begin(), chosen.end(), [&](const ParityCell& cell) { return cell.name == name; });
    if (!is_chosen) chosen.push_back(parity_cells()[static_cast<std::size_t>(found - known.begin())]);
  }
  return chosen;
}

}  // namespace pharos::cli

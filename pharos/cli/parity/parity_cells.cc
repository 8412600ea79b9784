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

ParityCell make_cell(std::int64_t tensor, bool sequence, std::int64_t data, const Sharding& sharding) {
  ParityCell cell;
  cell.world_size = tensor * data;
  if (tensor > 1) cell.name = "tp" + std::to_string(tensor) + (sequence ? "-sp" : "");
  if (data > 1) cell.name += (cell.name.empty() ? "dp" : "-dp") + std::to_string(data) + sharding.suffix;
  const std::string shards = sharding.strategy;
  cell.overrides = {
      "model.tensor_model_parallel_size=" + std::to_string(tensor),
      std::string("model.sequence_parallel=") + (sequence ? "true" : "false"),
      "ddp.data_parallel_sharding_strategy=" + shards,
      std::string("ddp.use_distributed_optimizer=") + (shards == "optim" ? "true" : "false"),
      std::string("ddp.overlap_grad_reduce=") + (sharding.overlaps ? "true" : "false"),
      std::string("ddp.overlap_param_gather=") + (sharding.overlaps && shards != "no_shard" ? "true" : "false")};
  return cell;
}

}  // namespace

ParityCell parity_reference() {
  ParityCell cell = make_cell(1, false, 1, kPlain);
  cell.name = "one-rank";
  return cell;
}

const std::vector<ParityCell>& parity_cells() {
  static const std::vector<ParityCell> cells = [] {
    std::vector<ParityCell> all;
    for (const std::int64_t data : {2, 4}) {
      for (const Sharding& sharding : {kPlain, kOverlap, kZero1, kZero2, kZero3})
        all.push_back(make_cell(1, false, data, sharding));
    }
    for (const std::int64_t tensor : {2, 4}) {
      for (const bool sequence : {false, true}) all.push_back(make_cell(tensor, sequence, 1, kPlain));
    }
    for (const Sharding& sharding : {kPlain, kZero1, kZero2, kZero3}) {
      all.push_back(make_cell(2, false, 2, sharding));
      all.push_back(make_cell(2, true, 2, sharding));
    }
    all.push_back(make_cell(4, true, 2, kZero3));
    all.push_back(make_cell(2, true, 4, kZero1));
    all.push_back(make_cell(1, false, 8, kZero2));
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

// The layouts that `pharos parity` compares with one rank. A capability that adds a dimension adds its cells here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pharos::cli {

struct ParityCell {
  std::string name;  ///< "tp2-sp-dp2-zero1"
  std::int64_t world_size = 1;
  std::vector<std::string> overrides;  ///< key=value
};

/// One rank, whatever layout the recipe asks for.
ParityCell parity_reference();

/// Up to 8 ranks: data parallel × sharding, tensor × sequence parallel, pipelines × schedules, context parallel, expert
/// parallel × dispatchers, and combinations of them.
const std::vector<ParityCell>& parity_cells();

/// The cells of that names, in the order given; all of them for an empty list. UserError for an unknown name, with the
/// nearest ones.
std::vector<ParityCell> select_parity_cells(const std::vector<std::string>& names);

}  // namespace pharos::cli

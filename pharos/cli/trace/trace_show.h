// `pharos trace show`: what the rings of a run say about where its time went and where it stands.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iosfwd>
#include <optional>

namespace pharos::cli {

struct TraceShowOptions {
  std::filesystem::path path;    ///< run folder, its trace folder, or one ring
  std::optional<int> rank = {};  ///< only this one of a folder
  bool is_json = false;          ///< one JSON object instead of tables
  std::size_t top = 20;          ///< names in the totals; 0: all
  std::size_t depth = 0;         ///< levels of the tree; 0: all
};

/// Prints one section a rank, in the order of ranks: process and clock range, tree of spans by path, totals by name,
/// open spans. The run may still write. UserError: a path that is missing or no run, a rank that has no ring, a file
/// that is no whole ring.
void show_trace(const TraceShowOptions& options, std::ostream& output);

}  // namespace pharos::cli

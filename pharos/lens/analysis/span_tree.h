// Spans added up by path: all spans of one name under one path of names are one node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pharos/lens/data/span_data.h"

namespace pharos::lens {

/// True for a span whose end is not its own: still open, or ended by the shutdown of telemetry (attribute
/// `nemo.span.truncated`). Its duration says nothing about the work it stands for.
bool is_unfinished(const SpanData& span);

struct SpanTreeNode {
  std::string name;                   ///< empty: the root
  std::size_t parent = 0;             ///< position in SpanTree::nodes; the root's is its own
  std::size_t depth = 0;              ///< 0: the root, 1: spans without a parent
  std::uint64_t count = 0;            ///< spans that ended
  std::uint64_t num_unfinished = 0;   ///< spans that did not
  std::int64_t total_ns = 0;          ///< time of both; an open span counts up to `last_ns` of the tree
  std::vector<std::size_t> children;  ///< longest total first, then by name

  /// Mean time of one span; 0 for the root.
  double mean_ns() const;
};

/// A flat tree, so that a chain of any length is harmless. nodes[0] is the root: it stands for no span, its total is
/// that of its children.
struct SpanTree {
  std::vector<SpanTreeNode> nodes;
  std::int64_t first_ns = 0;  ///< CLOCK_MONOTONIC: the earliest start; 0 without spans
  std::int64_t last_ns = 0;   ///< the latest start or end of any span

  /// Part of the parent's time, 1 = all of it. More than 1 where children run beside each other in several threads.
  /// Negative where there is nothing to compare with: below the root, or a parent of no length.
  double share_of_parent(std::size_t node) const;

  /// All positions but the root's, parents before their children, siblings in the order of `children`; nodes deeper
  /// than `max_depth` are left out, 0 means no limit.
  std::vector<std::size_t> in_print_order(std::size_t max_depth = 0) const;
};

/// The tree of `spans` (ended) and `open_spans` as read_ring() gives them. A span whose parent is not among them
/// (overwritten, of another process) stands below the root; so does one of a damaged ring that is its own ancestor.
SpanTree build_span_tree(const std::vector<SpanData>& spans, const std::vector<SpanData>& open_spans);

/// Names from the outermost ancestor to the span itself, for each of `open_spans`, in their order.
std::vector<std::vector<std::string>> paths_of_open_spans(const std::vector<SpanData>& spans,
                                                          const std::vector<SpanData>& open_spans);

}  // namespace pharos::lens

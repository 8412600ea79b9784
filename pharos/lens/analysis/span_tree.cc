#include "pharos/lens/analysis/span_tree.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

namespace pharos::lens {
namespace {

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

/// All spans with the position of each one's parent; no span is its own ancestor.
struct Forest {
  std::vector<const SpanData*> spans;
  std::vector<std::size_t> parents;  ///< kUnknown: none
};

/// Cuts each cycle at one of its spans.
void cut_cycles(std::vector<std::size_t>& parents) {
  enum class Mark : std::uint8_t { kNew, kOnThisWalk, kDone };
  std::vector<Mark> marks(parents.size(), Mark::kNew);
  std::vector<std::size_t> walk;
  for (std::size_t start = 0; start < parents.size(); ++start) {
    walk.clear();
    for (std::size_t at = start; at != kUnknown && marks[at] == Mark::kNew; at = parents[at]) {
      marks[at] = Mark::kOnThisWalk;
      walk.push_back(at);
      if (parents[at] != kUnknown && marks[parents[at]] == Mark::kOnThisWalk) parents[at] = kUnknown;
    }
    for (const std::size_t at : walk) marks[at] = Mark::kDone;
  }
}

Forest make_forest(const std::vector<SpanData>& spans, const std::vector<SpanData>& open_spans) {
  Forest forest;
  for (const auto* list : {&spans, &open_spans}) {
    for (const SpanData& span : *list) forest.spans.push_back(&span);
  }
  std::unordered_map<std::uint64_t, std::size_t> positions;
  for (std::size_t i = 0; i < forest.spans.size(); ++i) positions.emplace(forest.spans[i]->context.span_id, i);
  for (const SpanData* span : forest.spans) {
    const auto found = span->parent_span_id == 0 ? positions.end() : positions.find(span->parent_span_id);
    forest.parents.push_back(found == positions.end() ? kUnknown : found->second);
  }
  cut_cycles(forest.parents);
  return forest;
}

/// Positions such that parents come before their children.
std::vector<std::size_t> parents_first(const std::vector<std::size_t>& parents) {
  std::vector<std::size_t> order;
  std::vector<bool> is_placed(parents.size(), false);
  std::vector<std::size_t> chain;
  for (std::size_t start = 0; start < parents.size(); ++start) {
    chain.clear();
    for (std::size_t at = start; at != kUnknown && !is_placed[at]; at = parents[at]) {
      is_placed[at] = true;
      chain.push_back(at);
    }
    order.insert(order.end(), chain.rbegin(), chain.rend());
  }
  return order;
}

void find_clock_range(const std::vector<const SpanData*>& spans, SpanTree& tree) {
  if (spans.empty()) return;
  tree.first_ns = std::numeric_limits<std::int64_t>::max();
  tree.last_ns = std::numeric_limits<std::int64_t>::min();
  for (const SpanData* span : spans) {
    tree.first_ns = std::min(tree.first_ns, span->start_ns);
    tree.last_ns = std::max({tree.last_ns, span->start_ns, span->end_ns});
  }
}

void sort_children(SpanTree& tree) {
  for (SpanTreeNode& node : tree.nodes) {
    std::sort(node.children.begin(), node.children.end(), [&tree](std::size_t left, std::size_t right) {
      const SpanTreeNode& a = tree.nodes[left];
      const SpanTreeNode& b = tree.nodes[right];
      return a.total_ns != b.total_ns ? a.total_ns > b.total_ns : a.name < b.name;
    });
  }
}

}  // namespace

bool is_unfinished(const SpanData& span) {
  return span.end_ns == 0 || std::any_of(span.attributes.begin(), span.attributes.end(), [](const auto& attribute) {
           return attribute.first == "nemo.span.truncated";
         });
}

double SpanTreeNode::mean_ns() const {
  const std::uint64_t number = count + num_unfinished;
  return number == 0 ? 0 : static_cast<double>(total_ns) / static_cast<double>(number);
}

double SpanTree::share_of_parent(std::size_t node) const {
  const SpanTreeNode& parent = nodes[nodes[node].parent];
  if (parent.depth == 0 || parent.total_ns <= 0) return -1;
  return static_cast<double>(nodes[node].total_ns) / static_cast<double>(parent.total_ns);
}

std::vector<std::size_t> SpanTree::in_print_order(std::size_t max_depth) const {
  std::vector<std::size_t> order;
  std::vector<std::size_t> pending(nodes[0].children.rbegin(), nodes[0].children.rend());
  while (!pending.empty()) {
    const std::size_t at = pending.back();
    pending.pop_back();
    order.push_back(at);
    const SpanTreeNode& node = nodes[at];
    if (max_depth != 0 && node.depth >= max_depth) continue;
    pending.insert(pending.end(), node.children.rbegin(), node.children.rend());
  }
  return order;
}

SpanTree build_span_tree(const std::vector<SpanData>& spans, const std::vector<SpanData>& open_spans) {
  const Forest forest = make_forest(spans, open_spans);
  SpanTree tree;
  tree.nodes.emplace_back();
  find_clock_range(forest.spans, tree);
  std::map<std::pair<std::size_t, std::string>, std::size_t> known;
  std::vector<std::size_t> node_of(forest.spans.size(), 0);
  for (const std::size_t i : parents_first(forest.parents)) {
    const SpanData& span = *forest.spans[i];
    const std::size_t parent = forest.parents[i] == kUnknown ? 0 : node_of[forest.parents[i]];
    const auto [found, is_new] = known.try_emplace({parent, span.name}, tree.nodes.size());
    node_of[i] = found->second;
    if (is_new) {
      tree.nodes[parent].children.push_back(tree.nodes.size());
      SpanTreeNode& added = tree.nodes.emplace_back();
      added.name = span.name;
      added.parent = parent;
      added.depth = tree.nodes[parent].depth + 1;
    }
    SpanTreeNode& node = tree.nodes[node_of[i]];
    ++(is_unfinished(span) ? node.num_unfinished : node.count);
    const std::int64_t end_ns = span.end_ns == 0 ? tree.last_ns : span.end_ns;
    node.total_ns += std::max<std::int64_t>(0, end_ns - span.start_ns);
    if (parent == 0) tree.nodes[0].total_ns += std::max<std::int64_t>(0, end_ns - span.start_ns);
  }
  sort_children(tree);
  return tree;
}

std::vector<std::vector<std::string>> paths_of_open_spans(const std::vector<SpanData>& spans,
                                                          const std::vector<SpanData>& open_spans) {
  const Forest forest = make_forest(spans, open_spans);
  std::vector<std::vector<std::string>> paths;
  for (std::size_t i = spans.size(); i < forest.spans.size(); ++i) {
    std::vector<std::string>& path = paths.emplace_back();
    for (std::size_t at = i; at != kUnknown; at = forest.parents[at]) path.push_back(forest.spans[at]->name);
    std::reverse(path.begin(), path.end());
  }
  return paths;
}

}  // namespace pharos::lens

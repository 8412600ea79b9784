#include "pharos/cli/trace/trace_show.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/analysis/span_totals.h"
#include "pharos/lens/analysis/span_tree.h"
#include "pharos/lens/record/ring.h"

namespace pharos::cli {
namespace {

using Json = nlohmann::ordered_json;

/// N of "rank_N.ring"; the ring of the incarnation before, rank_N.previous.ring, is another file.
std::optional<int> rank_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  int rank = 0;
  const char* digits = name.c_str() + 5;
  if (!name.starts_with("rank_") || !name.ends_with(".ring")) return std::nullopt;
  const auto [end, error] = std::from_chars(digits, name.c_str() + name.size() - 5, rank);
  if (error != std::errc() || end != name.c_str() + name.size() - 5 || rank < 0) return std::nullopt;
  return rank;
}

std::map<int, std::filesystem::path> rings_in(const std::filesystem::path& folder) {
  std::map<int, std::filesystem::path> rings;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (const std::optional<int> rank = rank_of(entry.path())) rings[*rank] = entry.path();
  }
  return rings;
}

[[noreturn]] void fail_without_rings(const std::filesystem::path& folder) {
  std::error_code error;
  const bool is_run = std::filesystem::exists(folder / "run.yaml", error);
  throw base::UserError(
      {.what = folder.string() + (is_run ? " is a run without a trace: it has no trace/rank_N.ring."
                                         : " is not a run folder: it has neither run.yaml nor trace/rank_N.ring."),
       .why = "A run folder has run.yaml, log.txt, metrics.jsonl, checkpoints/ and, unless telemetry.ring is "
              "false, one trace/rank_N.ring a rank.",
       .fix = is_run ? "Run it with telemetry.ring=true, which is the default."
                     : "Give the folder that --run-dir named, or one ring file."});
}

std::vector<std::filesystem::path> find_rings(const TraceShowOptions& options) {
  std::error_code error;
  if (!std::filesystem::exists(options.path, error)) {
    throw base::UserError({.what = options.path.string() + " does not exist.",
                           .fix = "Give the folder that --run-dir named, or one ring file."});
  }
  if (!std::filesystem::is_directory(options.path, error)) {
    if (!options.rank) return {options.path};
    throw base::UserError({.what = "--rank " + std::to_string(*options.rank) +
                                   " chooses among the rings of a folder, but " + options.path.string() + " is a file.",
                           .fix = "Leave --rank out, or give the run folder."});
  }
  std::map<int, std::filesystem::path> rings = rings_in(options.path / "trace");
  if (rings.empty()) rings = rings_in(options.path);
  if (rings.empty()) fail_without_rings(options.path);
  std::vector<std::filesystem::path> found;
  std::vector<std::string> ranks;
  for (const auto& [rank, path] : rings) {
    ranks.push_back(std::to_string(rank));
    if (!options.rank || *options.rank == rank) found.push_back(path);
  }
  if (found.empty()) {
    throw base::UserError(
        {.what = "--rank " + std::to_string(*options.rank) + " has no ring in " + options.path.string() + ".",
         .fix = "Ranks that have one: " + base::join(ranks, ", ") + "."});
  }
  return found;
}

template <typename Value>
Value attribute_or(const lens::StoredAttributes& attributes, const std::string& key, Value otherwise) {
  for (const auto& [known, value] : attributes) {
    if (const Value* typed = std::get_if<Value>(&value); typed != nullptr && known == key) return *typed;
  }
  return otherwise;
}

/// A process number alone may belong to another process by now; only the writer of a ring has it mapped.
bool is_mapped_by(std::int64_t pid, const std::filesystem::path& ring) {
  std::error_code error;
  const std::string path = std::filesystem::canonical(ring, error).string();
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; !path.empty() && std::getline(maps, line);) {
    if (line.ends_with(" " + path)) return true;
  }
  return false;
}

/// Everything that is shown of one rank.
struct RankView {
  std::filesystem::path ring;
  lens::RingContents contents;
  lens::SpanTree tree;
  std::vector<lens::SpanTotals> totals;
  std::vector<std::vector<std::string>> open_paths;
  bool is_running = false;
  std::int64_t open_until_ns = 0;  ///< CLOCK_MONOTONIC of the writer: now if it runs, else the last thing recorded
};

RankView view_ring(const std::filesystem::path& ring) {
  RankView view;
  view.ring = ring;
  view.contents = lens::read_ring(ring);
  const lens::RingContents& contents = view.contents;
  view.tree = lens::build_span_tree(contents.spans, contents.open_spans);
  view.totals = lens::total_by_name(contents.spans, contents.open_spans);
  view.open_paths = lens::paths_of_open_spans(contents.spans, contents.open_spans);
  const auto pid = attribute_or(contents.resource.attributes, "process.pid", std::int64_t{0});
  view.is_running = !contents.is_shut_down && is_mapped_by(pid, ring);
  view.open_until_ns = view.is_running ? base::monotonic_ns() : view.tree.last_ns;
  return view;
}

const char* process_state(const RankView& view) {
  if (view.contents.is_shut_down) return "left in order";
  return view.is_running ? "is running" : "was killed, or runs on another machine";
}

std::string utc(const RankView& view, std::int64_t monotonic_ns) {
  return base::format_utc_time(view.contents.resource.to_wall_ns(monotonic_ns));
}

Json to_json(const lens::StoredAttributes& attributes) {
  Json object = Json::object();
  for (const auto& [key, value] : attributes) {
    if (key != "nemo.span.truncated") object[key] = std::visit([](const auto& typed) { return Json(typed); }, value);
  }
  return object;
}

Json tree_json(const lens::SpanTree& tree, std::size_t depth) {
  Json list = Json::array();
  std::map<std::size_t, std::size_t> positions;
  for (const std::size_t at : tree.in_print_order(depth)) {
    const lens::SpanTreeNode& node = tree.nodes[at];
    const double share = tree.share_of_parent(at);
    positions[at] = list.size();
    list.push_back({{"name", node.name},
                    {"depth", node.depth},
                    {"parent", node.parent == 0 ? Json(nullptr) : Json(positions[node.parent])},
                    {"count", node.count},
                    {"num_open", node.num_unfinished},
                    {"total_ns", node.total_ns},
                    {"mean_ns", node.mean_ns()},
                    {"share_of_parent", share < 0 ? Json(nullptr) : Json(share)}});
  }
  return list;
}

/// How many of `size` rows are shown.
std::size_t shown(std::size_t size, std::size_t top) { return top == 0 ? size : std::min(size, top); }

Json totals_json(const std::vector<lens::SpanTotals>& totals, std::size_t top) {
  Json list = Json::array();
  for (std::size_t i = 0; i < shown(totals.size(), top); ++i) {
    const lens::SpanTotals& entry = totals[i];
    list.push_back({{"name", entry.name},
                    {"count", entry.count},
                    {"num_open", entry.num_unfinished},
                    {"total_ns", entry.total_ns},
                    {"mean_ns", entry.mean_ns},
                    {"p50_ns", entry.p50_ns},
                    {"p99_ns", entry.p99_ns},
                    {"share_of_step", entry.share_of_step ? Json(*entry.share_of_step) : Json(nullptr)}});
  }
  return list;
}

Json open_json(const RankView& view) {
  Json list = Json::array();
  for (std::size_t i = 0; i < view.contents.open_spans.size(); ++i) {
    const lens::SpanData& span = view.contents.open_spans[i];
    list.push_back({{"path", view.open_paths[i]},
                    {"start_time", utc(view, span.start_ns)},
                    {"open_ns", view.open_until_ns - span.start_ns},
                    {"thread_index", span.thread_index},
                    {"attributes", to_json(span.attributes)}});
  }
  return list;
}

Json rank_json(const RankView& view, const TraceShowOptions& options) {
  const lens::RingContents& contents = view.contents;
  const bool is_empty = contents.spans.empty() && contents.open_spans.empty();
  Json rank;
  rank["ring"] = view.ring.string();
  rank["resource"] = to_json(contents.resource.attributes);
  rank["process"] = contents.is_shut_down ? "left_in_order" : view.is_running ? "running" : "killed_or_elsewhere";
  rank["num_ended"] = contents.spans.size();
  rank["num_open"] = contents.open_spans.size();
  rank["num_overwritten"] = contents.num_overwritten;
  rank["num_counter_events"] = contents.counters.size();
  rank["first_time"] = is_empty ? Json(nullptr) : Json(utc(view, view.tree.first_ns));
  rank["last_time"] = is_empty ? Json(nullptr) : Json(utc(view, view.tree.last_ns));
  rank["range_ns"] = view.tree.last_ns - view.tree.first_ns;
  rank["tree"] = tree_json(view.tree, options.depth);
  rank["totals"] = totals_json(view.totals, options.top);
  rank["open"] = open_json(view);
  return rank;
}

/// Columns on a terminal: code points of UTF-8 ("µs" has two).
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

/// A name out of a file must not steer the terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char byte) { return std::iscntrl(byte) != 0; }, '?');
  return text;
}

using Row = std::vector<std::string>;

/// First row: the headings. The first and the last `left` columns begin flush left, numbers end flush right.
void print_table(std::ostream& output, const std::vector<Row>& rows, std::size_t num_left_at_end = 0) {
  std::vector<std::size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - width_of(row[i]), ' ');
      const bool is_left = i == 0 || i + num_left_at_end >= row.size();
      line += "  " + (is_left ? row[i] + padding : padding + row[i]);
    }
    output << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

std::string duration(double ns) { return base::format_duration(static_cast<std::int64_t>(ns)); }

void print_tree(std::ostream& output, const RankView& view, std::size_t depth) {
  output << "\nTime by path (an open span counts up to the last thing recorded; more than 100 % of the parent: several "
            "threads)\n";
  std::vector<Row> rows = {{"span", "count", "open", "total", "mean", "of parent"}};
  for (const std::size_t at : view.tree.in_print_order(depth)) {
    const lens::SpanTreeNode& node = view.tree.nodes[at];
    const double share = view.tree.share_of_parent(at);
    const std::string indent(2 * (std::min<std::size_t>(node.depth, 64) - 1), ' ');
    rows.push_back({indent + printable(node.name), std::to_string(node.count), std::to_string(node.num_unfinished),
                    base::format_duration(node.total_ns), duration(node.mean_ns()), share < 0 ? "-" : percent(share)});
  }
  print_table(output, rows);
}

void print_totals(std::ostream& output, const RankView& view, std::size_t top) {
  output << "\nTime by name (ended spans; p50, p99: nearest rank; of step: compared with all " << lens::kStepSpan
         << " spans)\n";
  std::vector<Row> rows = {{"span", "count", "total", "mean", "p50", "p99", "of step"}};
  for (std::size_t i = 0; i < shown(view.totals.size(), top); ++i) {
    const lens::SpanTotals& entry = view.totals[i];
    if (entry.count == 0) {
      rows.push_back({printable(entry.name), "0", "-", "-", "-", "-", "-"});
      continue;
    }
    rows.push_back({printable(entry.name), std::to_string(entry.count), base::format_duration(entry.total_ns),
                    duration(entry.mean_ns), base::format_duration(entry.p50_ns), base::format_duration(entry.p99_ns),
                    entry.share_of_step ? percent(*entry.share_of_step) : "-"});
  }
  print_table(output, rows);
  const std::size_t left_out = view.totals.size() - shown(view.totals.size(), top);
  if (left_out != 0) output << "  … " << left_out << " more names; --top 0 shows all\n";
}

void print_open(std::ostream& output, const RankView& view) {
  output << "\nOpen spans ("
         << (view.is_running ? "for how long: until now" : "for how long: until the last thing recorded") << ")\n";
  std::vector<Row> rows = {{"started", "for", "thread", "span", "attributes"}};
  for (std::size_t i = 0; i < view.contents.open_spans.size(); ++i) {
    const lens::SpanData& span = view.contents.open_spans[i];
    const Json attributes = to_json(span.attributes);
    rows.push_back({utc(view, span.start_ns), base::format_duration(view.open_until_ns - span.start_ns),
                    std::to_string(span.thread_index), printable(base::join(view.open_paths[i], " > ")),
                    attributes.empty() ? "" : attributes.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  print_table(output, rows, 2);
}

void print_rank(std::ostream& output, const RankView& view, const TraceShowOptions& options) {
  const lens::RingContents& contents = view.contents;
  const lens::StoredAttributes& resource = contents.resource.attributes;
  output << "Rank " << attribute_or(resource, "dl.rank", std::int64_t{0}) << " of "
         << attribute_or(resource, "dl.world_size", std::int64_t{0}) << ": process "
         << attribute_or(resource, "process.pid", std::int64_t{0}) << " on "
         << printable(attribute_or(resource, "host.name", std::string())) << " " << process_state(view) << "\n";
  output << "  " << contents.spans.size() << " spans ended, " << contents.open_spans.size() << " open, "
         << contents.num_overwritten << " overwritten by later ones and not counted below\n";
  if (!contents.counters.empty()) output << "  " << contents.counters.size() << " counter events (trace dump)\n";
  if (contents.spans.empty() && contents.open_spans.empty()) {
    output << "  The ring holds no span.\n";
    return;
  }
  output << "  " << utc(view, view.tree.first_ns) << " to " << utc(view, view.tree.last_ns) << ", "
         << base::format_duration(view.tree.last_ns - view.tree.first_ns) << "\n";
  print_tree(output, view, options.depth);
  print_totals(output, view, options.top);
  if (!contents.open_spans.empty()) print_open(output, view);
}

}  // namespace

void show_trace(const TraceShowOptions& options, std::ostream& output) {
  Json ranks = Json::array();
  bool is_first = true;
  for (const std::filesystem::path& ring : find_rings(options)) {
    const RankView view = view_ring(ring);
    if (options.is_json) {
      ranks.push_back(rank_json(view, options));
    } else {
      if (!std::exchange(is_first, false)) output << "\n";
      print_rank(output, view, options);
    }
  }
  if (options.is_json) {
    output << Json{{"ranks", std::move(ranks)}}.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
}

}  // namespace pharos::cli

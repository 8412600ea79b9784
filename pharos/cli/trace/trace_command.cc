#include "pharos/cli/trace/trace_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/trace/trace_show.h"
#include "pharos/lens/record/ring.h"

namespace pharos::cli {
namespace {

/// The ring itself, or all rings of a run folder.
std::vector<std::filesystem::path> find_rings(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  const std::filesystem::path inner = path / "trace";
  std::vector<std::filesystem::path> rings;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::exists(inner) ? inner : path, error)) {
    if (entry.path().extension() == ".ring") rings.push_back(entry.path());
  }
  if (rings.empty()) {
    throw base::UserError({.what = "There is no trace ring in " + path.string() + ".",
                           .why = "A run writes trace/rank_N.ring unless telemetry.ring is false.",
                           .fix = "Give the folder that --run-dir named, or one ring file."});
  }
  std::sort(rings.begin(), rings.end());
  return rings;
}

void dump(const std::string& path) {
  for (const std::filesystem::path& ring : find_rings(path)) {
    const lens::RingContents contents = lens::read_ring(ring);
    for (const auto* spans : {&contents.spans, &contents.open_spans}) {
      for (const lens::SpanData& span : *spans) std::cout << lens::to_json_line(span, contents.resource) << "\n";
    }
    for (const lens::CounterEvent& event : contents.counters)
      std::cout << lens::to_json_line(event, contents.resource) << "\n";
    std::cerr << ring.string() << ": " << contents.spans.size() << " spans ended, " << contents.open_spans.size()
              << " open, " << contents.num_overwritten << " overwritten, " << contents.counters.size()
              << " counter events; the process "
              << (contents.is_shut_down ? "left in order" : "still runs or was killed") << "\n";
  }
}

void add_show_command(CLI::App& trace_command) {
  CLI::App* command =
      trace_command.add_subcommand("show", "Where the time of a run went and which spans are open, from its rings");
  auto options = std::make_shared<TraceShowOptions>();
  command->add_option("path", options->path, "Run folder, or one ring file")->required();
  command->add_option("--rank", options->rank, "Only this rank (default: every rank that has a ring)")
      ->check(whole_number<std::int64_t>(0, std::numeric_limits<int>::max()));
  command->add_flag("--json", options->is_json, "One JSON object; durations in nanoseconds, shares as fractions");
  command->add_option("--top", options->top, "Names in the totals, longest total first; 0: all")
      ->check(whole_number<std::int64_t>(0, std::numeric_limits<int>::max()))
      ->capture_default_str();
  command->add_option("--depth", options->depth, "Levels of the tree; 0: all")
      ->check(whole_number<std::int64_t>(0, std::numeric_limits<int>::max()))
      ->capture_default_str();
  command->callback([options] { show_trace(*options, std::cout); });
}

}  // namespace

void add_trace_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("trace", "Traces: what a run recorded, also when it was killed");
  command->require_subcommand(1);
  CLI::App* dump_command = command->add_subcommand(
      "dump", "Print a ring as JSON lines: ended spans, open ones, counter events; a summary goes to standard error");
  auto path = std::make_shared<std::string>();
  dump_command->add_option("path", *path, "Ring file, or run folder (all its rings)")->required();
  dump_command->callback([path] { dump(*path); });
  add_show_command(*command);
}

}  // namespace pharos::cli

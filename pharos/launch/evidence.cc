#include "pharos/launch/evidence.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>

#include "pharos/base/text.h"
#include "pharos/comm/watchdog.h"
#include "pharos/launch/rank_logs.h"
#include "pharos/lens/analysis/span_tree.h"
#include "pharos/lens/record/ring.h"

namespace pharos::launch {
namespace {

constexpr std::size_t kMaxSpans = 4;

std::int64_t process_of(const lens::Resource& resource) {
  for (const auto& [key, value] : resource.attributes) {
    if (const auto* pid = std::get_if<std::int64_t>(&value); pid != nullptr && key == "process.pid") return *pid;
  }
  return 0;
}

std::vector<std::string> describe_open_spans(const lens::RingContents& ring, std::int64_t end_ns) {
  const std::vector<std::vector<std::string>> paths = lens::paths_of_open_spans(ring.spans, ring.open_spans);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const lens::SpanData& span = ring.open_spans[i];
    const bool is_innermost = std::none_of(ring.open_spans.begin(), ring.open_spans.end(), [&span](const auto& other) {
      return other.parent_span_id == span.context.span_id;
    });
    if (!is_innermost || lines.size() == kMaxSpans) continue;
    lines.push_back("in span " + base::join(paths[i], " > ") + ", open for " +
                    base::format_duration(end_ns - span.start_ns));
  }
  return lines;
}

/// Spans that every pass of training makes for readers of Megatron's traces and that enclose no work.
constexpr std::array<std::string_view, 3> kMarkers = {
    "megatron.checkpoint.ft_heartbeat", "megatron.checkpoint.save.finalize", "megatron.checkpoint.exit_finalize"};

/// What ended last; a marker, which would hide it, only where there is nothing else.
const lens::SpanData& last_work(const std::vector<lens::SpanData>& spans) {
  const auto found = std::find_if(spans.rbegin(), spans.rend(), [](const lens::SpanData& span) {
    return std::find(kMarkers.begin(), kMarkers.end(), span.name) == kMarkers.end();
  });
  return found == spans.rend() ? spans.back() : *found;
}

}  // namespace

std::optional<comm::RankState> find_flight_record(const std::filesystem::path& run_folder, const RankEnd& end) {
  const std::filesystem::path path = run_folder / "trace" / comm::flight_file_name(end.rank);
  try {
    if (!std::filesystem::exists(path)) return std::nullopt;
    comm::RankState state = comm::read_flight_record(path);
    if (state.pid == end.pid) return state;
  } catch (const std::exception&) {
    return std::nullopt;  // the report goes on without it
  }
  return std::nullopt;
}

std::vector<std::string> describe_spans(const std::filesystem::path& run_folder, const RankEnd& end) {
  const std::filesystem::path path = run_folder / "trace" / ("rank_" + std::to_string(end.rank) + ".ring");
  try {
    if (!std::filesystem::exists(path)) return {};
    const lens::RingContents ring = lens::read_ring(path);
    if (process_of(ring.resource) != end.pid) return {};
    std::vector<std::string> lines = describe_open_spans(ring, end.time_ns);
    if (!lines.empty() || ring.spans.empty()) return lines;
    const lens::SpanData& last = last_work(ring.spans);
    return {"last span " + last.name + ", ended " + base::format_duration(end.time_ns - last.end_ns) + " before"};
  } catch (const std::exception&) {
    return {};  // the report goes on without it
  }
}

std::optional<std::filesystem::path> find_hang_file(const std::filesystem::path& run_folder, std::int64_t rank,
                                                    std::filesystem::file_time_type since) {
  const std::filesystem::path path = run_folder / "trace" / comm::hang_file_name(rank);
  std::error_code error;
  const std::filesystem::file_time_type written = std::filesystem::last_write_time(path, error);
  if (error || written < since) return std::nullopt;
  return path;
}

std::string reason_of_hang(const std::filesystem::path& hang_file) {
  std::ifstream file(hang_file);
  const nlohmann::json record = nlohmann::json::parse(file, nullptr, false);
  const auto found = record.is_object() ? record.find("reason") : record.end();
  return found != record.end() && found->is_string() ? found->get<std::string>() : "no reason is given";
}

std::int64_t last_recorded_step(const std::filesystem::path& run_folder) {
  std::int64_t step = 0;
  for (const std::string& line : last_lines({.path = run_folder / "metrics.jsonl"}, 20)) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;  // cut off by whatever ended the run
    const auto found = record.find("step");
    if (found != record.end() && found->is_number_integer()) step = std::max(step, found->get<std::int64_t>());
  }
  return step;
}

}  // namespace pharos::launch

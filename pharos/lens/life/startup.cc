#include "pharos/lens/life/startup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pharos/base/clock.h"
#include "pharos/lens/variables/scalar.h"

namespace pharos::lens {
namespace {

constexpr int kBarWidth = 40;

/// Name of the span of a phase; empty for those that are spans of their own.
std::string span_name_of(const std::string& phase) {
  if (phase == "data" || phase == "model") return "";
  std::string part = phase == "libraries" ? "imports" : phase == "config" ? "arg_parse" : phase;
  if (phase == "initialize") part = "initialize_megatron";
  if (phase == "kernels") part = "jit_fusion_options";
  std::replace(part.begin(), part.end(), ' ', '_');
  return "megatron.startup." + part;
}

/// `elapsed_ns` as parts of `whole_ns`, rounded; differences of such numbers add up to the rounded whole.
std::int64_t scaled(std::int64_t elapsed_ns, std::int64_t whole_ns, std::int64_t parts) {
  if (whole_ns <= 0) return 0;
  return std::llround(static_cast<double>(elapsed_ns) / static_cast<double>(whole_ns) * static_cast<double>(parts));
}

std::string bar(std::int64_t first, std::int64_t last) {
  last = std::max(last, first + 1);
  if (last > kBarWidth) {
    last = kBarWidth;
    first = std::min<std::int64_t>(first, kBarWidth - 1);
  }
  std::string text(kBarWidth, ' ');
  for (std::int64_t i = first; i < last; ++i) text[static_cast<std::size_t>(i)] = '#';
  return text;
}

}  // namespace

StartupRecord::StartupRecord() : StartupRecord(base::process_start_monotonic_ns()) {}

void StartupRecord::finish_phase(std::string name) { finish_phase(std::move(name), base::monotonic_ns()); }

void StartupRecord::finish_phase(std::string name, std::int64_t end_ns) {
  end_ns = std::max(end_ns, last_ns_);
  phases_.push_back({std::move(name), last_ns_, end_ns - last_ns_});
  last_ns_ = end_ns;
}

std::string StartupRecord::render() const {
  std::size_t name_width = 5;
  for (const Phase& phase : phases_) name_width = std::max(name_width, phase.name.size());
  const std::int64_t whole_ns = total_ns();
  const auto milliseconds = [](std::int64_t elapsed_ns) { return (elapsed_ns + 500'000) / 1'000'000; };
  std::string text;
  const auto add_line = [&](const std::string& name, std::int64_t from_ns, std::int64_t to_ns) {
    const std::int64_t percent = scaled(to_ns, whole_ns, 100) - scaled(from_ns, whole_ns, 100);
    text += fmt::format("  {:<{}}  {}  {:>7} ms  {:>3} %\n", name, name_width,
                        bar(scaled(from_ns, whole_ns, kBarWidth), scaled(to_ns, whole_ns, kBarWidth)),
                        milliseconds(to_ns) - milliseconds(from_ns), percent);
  };
  for (const Phase& phase : phases_) {
    add_line(phase.name, phase.start_ns - start_ns_, phase.start_ns - start_ns_ + phase.duration_ns);
  }
  add_line("total", 0, whole_ns);
  text.pop_back();
  return text;
}

LaunchStamps read_launch_stamps(const Environment& environment) {
  const std::int64_t to_monotonic_ns = base::monotonic_ns() - base::wall_ns();
  const auto read = [&](const char* name) -> std::optional<std::int64_t> {
    const auto text = environment.get_nonblank(name);
    if (!text) return std::nullopt;
    const std::optional<double> seconds = parse_number(*text);
    constexpr double kLatest = 4e9;  // in the year 2096; later times are no stamps
    if (!seconds || !(*seconds > 0 && *seconds < kLatest)) return std::nullopt;
    return static_cast<std::int64_t>(*seconds * 1e9) + to_monotonic_ns;
  };
  LaunchStamps stamps{read("SLURM_JOB_START_TIME"), read("LENS_LAUNCH_SCRIPT_START_TIME"),
                      read("LENS_LAUNCH_SCRIPT_PRESRUN_TIME")};
  const auto agent_launch_ns = read("NVRX_LAUNCH_TIME");
  if (!agent_launch_ns) return stamps;
  const auto cycle = environment.get_nonblank("NVRX_CYCLE");
  const bool is_restart =
      (cycle && parse_integer(*cycle).value_or(0) > 0) || environment.get("NVRX_CYCLE_START_TIME").has_value();
  return {std::nullopt, is_restart ? agent_launch_ns : stamps.script_start_ns, std::nullopt};
}

ManagedSpan open_startup_span(const StartupRecord& record, std::string_view model_type, const LaunchStamps& stamps) {
  const auto& [scheduler, script, before_launch] = stamps;
  if (scheduler && script && *scheduler < *script) {
    record_span("pre_startup", Group::kJob, *scheduler, *script, {}, {{kGoodput, true}});
  }
  const bool has_launch = script && before_launch && *script <= *before_launch && *before_launch <= record.start_ns();
  StartOptions options;
  options.is_root = true;
  options.start_ns = has_launch ? *script : record.start_ns();
  ManagedSpan span =
      start_span(Group::kJob, "megatron.startup", options, {{kGoodput, true}, {"megatron.model_type", model_type}});
  if (!span) return span;
  const auto record_part = [&span](std::string_view name, std::int64_t start_ns, std::int64_t end_ns) {
    record_span(name, Group::kJob, start_ns, end_ns, span.context(), {{kGoodput, true}});
  };
  if (has_launch) {
    record_part("megatron.startup.launch_script", *script, *before_launch);
    record_part("megatron.startup.container_load", *before_launch, record.start_ns());
  }
  for (const StartupRecord::Phase& phase : record.phases()) {
    const std::string name = span_name_of(phase.name);
    if (name.empty()) continue;
    const std::int64_t end_ns = phase.start_ns + phase.duration_ns;
    record_part(name, phase.start_ns, end_ns);
    if (phase.name != "config") continue;
    record_part("megatron.startup.inprocess_setup", end_ns, end_ns);
    record_part("megatron.startup.in_job_setup", end_ns, end_ns);
  }
  return span;
}

void IntervalSpans::next_pass() {
  if (interval_ > 0 && num_passes_ % interval_ == 0) {
    block_.end();
    StartOptions options;
    options.is_root = true;
    options.link = previous_;
    block_ = start_span(Group::kJob, name_, options, {{kGoodput, true}});
    if (block_) previous_ = block_.context();
  }
  ++num_passes_;
}

}  // namespace pharos::lens

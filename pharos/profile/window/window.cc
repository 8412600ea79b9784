#include "pharos/profile/window/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pharos::profile {
namespace {

bool is_profiled(const config::ProfilingConfig& config, std::int64_t rank) {
  const auto& ranks = config.profile_ranks;
  return config.use_nsys_profiler && config.profile_step_start < config.profile_step_end &&
         (ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end());
}

}  // namespace

Window::Tools Window::find_tools() {
  Tools tools;
  tools.profiler = open_cuda_profiler(tools.why_not);
  tools.ranges = open_nvtx();
  return tools;
}

Window::Window(const config::ProfilingConfig& config, std::int64_t rank, Say say, const std::function<Tools()>& tools)
    : config_(config), say_(std::move(say)) {
  if (!is_profiled(config, rank)) return;
  tools_ = tools();
  if (tools_.profiler == nullptr) {
    say_("warning: profiling.use_nsys_profiler has no effect: there is no CUDA runtime (" + tools_.why_not +
         "). The run goes on without a profile.");
    return;
  }
  if (tools_.ranges == nullptr) {
    say_(
        "warning: the profile will have no NVTX ranges: libtorch was built without CUDA, and libnvToolsExt was not "
        "found");
  }
  is_over_ = false;
}

void Window::before_step(std::int64_t completed) {
  if (is_over_) return;
  completed_ = completed;
  if (completed >= config_.profile_step_end) {
    if (is_open_) return close(completed);
    is_over_ = true;
    return say_(
        fmt::format("profiling: nothing is captured, the run continues at step {} and the window [{}, {}) is over",
                    completed, config_.profile_step_start, config_.profile_step_end));
  }
  if (!is_open_ && completed >= config_.profile_step_start) open(completed);
  if (is_open_ && config_.nvtx_ranges && tools_.ranges != nullptr) {
    tools_.ranges->push(fmt::format("training_step_{}", completed + 1).c_str());
    in_step_ = true;
  }
}

void Window::after_step(std::int64_t completed) {
  if (!is_open_) return;
  completed_ = completed;
  if (std::exchange(in_step_, false)) tools_.ranges->pop();
  if (completed >= config_.profile_step_end) close(completed);
}

void Window::leave() {
  if (is_open_) close(completed_);
  if (std::exchange(is_over_, true)) return;
  say_(fmt::format("profiling: nothing is captured, the run ended without a step of the window [{}, {})",
                   config_.profile_step_start, config_.profile_step_end));
}

void Window::open(std::int64_t completed) {
  if (const std::string problem = tools_.profiler->start(); !problem.empty()) {
    is_over_ = true;
    return say_("warning: no profile is captured: " + problem);
  }
  is_open_ = true;
  say_(fmt::format("profiling: capture of steps {} to {} begins", completed + 1, config_.profile_step_end));
  if (tools_.ranges == nullptr) return;
  operators_.emplace(*tools_.ranges, config_.record_shapes);
  if (config_.nvtx_ranges) lens::show_spans(tools_.ranges);
}

void Window::close(std::int64_t completed) {
  is_open_ = false;
  is_over_ = true;
  operators_.reset();
  if (config_.nvtx_ranges && tools_.ranges != nullptr) lens::show_spans(nullptr);
  if (std::exchange(in_step_, false)) tools_.ranges->pop();
  if (const std::string problem = tools_.profiler->stop(); !problem.empty()) {
    return say_("warning: the end of the profile is uncertain: " + problem);
  }
  say_(completed >= config_.profile_step_end
           ? fmt::format("profiling: capture ends after step {}", completed)
           : fmt::format("profiling: capture ends early, after step {} of {}", completed, config_.profile_step_end));
}

}  // namespace pharos::profile

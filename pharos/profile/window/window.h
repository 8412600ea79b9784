// The steps a profiler captures (bridge-config.md section 5): completed steps [start, end) of the whole training, so
// the steps start + 1 to end as the log counts them, whenever this process began.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "pharos/config/run_config.h"
#include "pharos/profile/window/operator_ranges.h"
#include "pharos/profile/window/profiler.h"

namespace pharos::profile {

/// Belongs to the training thread. A run that resumes inside the window captures the rest of it, one that resumes
/// beyond it nothing; a run that ends inside it closes it. With profiling.use_nsys_profiler off, or on a rank that
/// profiling.profile_ranks does not name, every call does nothing.
class Window {
 public:
  using Say = std::function<void(const std::string& line)>;

  /// What a window works with; tests have their own.
  struct Tools {
    std::unique_ptr<Profiler> profiler = {};  ///< null: `why_not`
    lens::SpanMarkers* ranges = nullptr;
    std::string why_not = {};
  };
  static Tools find_tools();

  /// Says at once what it cannot do: a missing library is no reason to end a run.
  Window(const config::ProfilingConfig& config, std::int64_t rank, Say say,
         const std::function<Tools()>& tools = find_tools);
  ~Window() { leave(); }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  /// At the top of the loop, `completed` steps of the training being done.
  void before_step(std::int64_t completed);
  /// After the step, its report and its evaluation; `completed` counts it.
  void after_step(std::int64_t completed);
  /// No more steps: closes what is open. Called by the destructor, so an exception closes the window too.
  void leave();

 private:
  void open(std::int64_t completed);
  void close(std::int64_t completed);

  const config::ProfilingConfig config_;
  Say say_;
  Tools tools_;
  std::optional<OperatorRanges> operators_;
  std::int64_t completed_ = 0;
  bool is_open_ = false;
  bool is_over_ = true;  ///< nothing will be opened any more
  bool in_step_ = false;
};

}  // namespace pharos::profile

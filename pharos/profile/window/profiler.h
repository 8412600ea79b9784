// What a window switches on and off: a profiler that waits outside the process, and the ranges it shows.
#pragma once

#include <memory>
#include <string>

#include "pharos/lens/life/span_markers.h"

namespace pharos::profile {

/// Both return what went wrong, empty when nothing did.
class Profiler {
 public:
  virtual ~Profiler() = default;
  virtual std::string start() = 0;
  virtual std::string stop() = 0;
};

/// cudaProfilerStart and cudaProfilerStop of the CUDA runtime (libcudart), which a profiler started with
/// `--capture-range=cudaProfilerApi` waits for. Null where there is no runtime; `why_not` says what was looked for.
std::unique_ptr<Profiler> open_cuda_profiler(std::string& why_not);

/// NVTX ranges, by libtorch where it has CUDA, else by libnvToolsExt. Null where there is neither. Lives as long as the
/// process.
lens::SpanMarkers* open_nvtx();

}  // namespace pharos::profile

#include "pharos/profile/window/profiler.h"

#include <torch/csrc/profiler/stubs/base.h>

#include "pharos/profile/library.h"

namespace pharos::profile {
namespace {

/// cudaError_t is an int; cudaSuccess is 0.
class CudaProfiler : public Profiler {
 public:
  explicit CudaProfiler(const Library& runtime)
      : start_(runtime.function<int()>("cudaProfilerStart")),
        stop_(runtime.function<int()>("cudaProfilerStop")),
        describe_(runtime.function<const char*(int)>("cudaGetErrorString")) {}

  bool is_whole() const { return start_ != nullptr && stop_ != nullptr; }
  std::string start() override { return report("cudaProfilerStart", start_()); }
  std::string stop() override { return report("cudaProfilerStop", stop_()); }

 private:
  std::string report(const char* function, int error) const {
    if (error == 0) return "";
    const char* text = describe_ != nullptr ? describe_(error) : nullptr;
    return std::string(function) + " failed: " + (text != nullptr ? text : "CUDA error") + " (" +
           std::to_string(error) + ")";
  }

  int (*start_)();
  int (*stop_)();
  const char* (*describe_)(int);
};

class TorchNvtx : public lens::SpanMarkers {
 public:
  void push(const char* name) override { torch::profiler::impl::cudaStubs()->rangePush(name); }
  void pop() override { torch::profiler::impl::cudaStubs()->rangePop(); }
};

class LibraryNvtx : public lens::SpanMarkers {
 public:
  explicit LibraryNvtx(const Library& library)
      : push_(library.function<int(const char*)>("nvtxRangePushA")), pop_(library.function<int()>("nvtxRangePop")) {}

  bool is_whole() const { return push_ != nullptr && pop_ != nullptr; }
  void push(const char* name) override { push_(name); }
  void pop() override { pop_(); }

 private:
  int (*push_)(const char*);
  int (*pop_)();
};

}  // namespace

std::unique_ptr<Profiler> open_cuda_profiler(std::string& why_not) {
  const Library runtime = Library::find({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
  if (!runtime) {
    why_not = "libcudart was not found";
    return nullptr;
  }
  auto profiler = std::make_unique<CudaProfiler>(runtime);
  if (profiler->is_whole()) return profiler;
  why_not = runtime.text() + " has no cudaProfilerStart and cudaProfilerStop";
  return nullptr;
}

lens::SpanMarkers* open_nvtx() {
  // Never freed: threads may be inside when the process leaves.
  static lens::SpanMarkers* const nvtx = []() -> lens::SpanMarkers* {
    if (torch::profiler::impl::cudaStubs()->enabled()) return new TorchNvtx;
    auto ranges = std::make_unique<LibraryNvtx>(Library::find({"libnvToolsExt.so.1", "libnvToolsExt.so"}));
    return ranges->is_whole() ? ranges.release() : nullptr;
  }();
  return nvtx;
}

}  // namespace pharos::profile

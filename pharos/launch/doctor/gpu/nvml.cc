#include "pharos/launch/doctor/gpu/nvml.h"

#include <dlfcn.h>

#include <array>

namespace pharos::launch {
namespace {

// Layouts and numbers of NVML's stable interface (NVML API reference, versioned names).
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr int kClockSm = 1;
constexpr int kUncorrected = 1;
constexpr int kSinceDriverLoad = 0;
constexpr int kGpuTemperature = 0;

struct Memory {
  unsigned long long total, free, used;
};
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

/// The library while it is in use; a function that this version lacks answers as an unsupported one.
class Library {
 public:
  explicit Library(const std::string& name) : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = ::dlerror();
  }
  bool is_open() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  template <typename... Arguments>
  int call(const char* function, Arguments... arguments) const {
    constexpr int kFunctionNotFound = 13;
    auto* address = reinterpret_cast<int (*)(Arguments...)>(::dlsym(handle_, function));
    return address == nullptr ? kFunctionNotFound : address(arguments...);
  }

  /// "nvmlInit_v2: Driver/library version mismatch"
  std::string describe(const char* function, int code) const {
    auto* text_of = reinterpret_cast<const char* (*)(int)>(::dlsym(handle_, "nvmlErrorString"));
    return std::string(function) + ": " + (text_of != nullptr ? text_of(code) : "error " + std::to_string(code));
  }

 private:
  void* handle_;  // stays loaded until the process of the check ends: drivers do not like to be unloaded
  std::string error_;
};

std::optional<std::int64_t> unsigned_of(const Library& library, const char* function, Device device) {
  unsigned value = 0;
  if (library.call(function, device, &value) != kSuccess) return std::nullopt;
  return value;
}

std::optional<std::int64_t> clock_of(const Library& library, const char* function, Device device) {
  unsigned value = 0;
  if (library.call(function, device, kClockSm, &value) != kSuccess) return std::nullopt;
  return value;
}

std::vector<std::int64_t> processes_of(const Library& library, Device device) {
  std::vector<ProcessInfo> processes(64);
  auto count = static_cast<unsigned>(processes.size());
  const int code = library.call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, processes.data());
  if (code != kSuccess && code != kInsufficientSize) return {};
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; code == kSuccess && i < count && i < processes.size(); ++i)
    numbers.push_back(processes[i].pid);
  return numbers;
}

GpuFacts facts_of(const Library& library, Device device) {
  GpuFacts facts;
  std::array<char, 96> name{};
  if (library.call("nvmlDeviceGetName", device, name.data(), static_cast<unsigned>(name.size())) == kSuccess)
    facts.name = name.data();
  PciInfo bus{};
  if (library.call("nvmlDeviceGetPciInfo_v3", device, &bus) == kSuccess) facts.bus_id = bus.bus_id;
  Memory memory{};
  if (library.call("nvmlDeviceGetMemoryInfo", device, &memory) == kSuccess) {
    facts.memory_bytes = static_cast<std::int64_t>(memory.total);
    facts.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  unsigned temperature = 0;
  if (library.call("nvmlDeviceGetTemperature", device, kGpuTemperature, &temperature) == kSuccess)
    facts.temperature_celsius = temperature;
  facts.clock_mhz = clock_of(library, "nvmlDeviceGetClockInfo", device);
  facts.most_clock_mhz = clock_of(library, "nvmlDeviceGetMaxClockInfo", device);
  unsigned long long reasons = 0;
  if (library.call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &reasons) == kSuccess)
    facts.throttle_reasons = reasons;
  unsigned long long errors = 0;
  if (library.call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kSinceDriverLoad, &errors) == kSuccess)
    facts.uncorrected_errors = static_cast<std::int64_t>(errors);
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (library.call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &pending, &failed) == kSuccess) {
    facts.has_pending_rows = pending != 0;
    facts.has_failed_rows = failed != 0;
  }
  facts.link_width = unsigned_of(library, "nvmlDeviceGetCurrPcieLinkWidth", device);
  facts.most_link_width = unsigned_of(library, "nvmlDeviceGetMaxPcieLinkWidth", device);
  facts.processes = processes_of(library, device);
  return facts;
}

}  // namespace

NvmlResult read_nvml(const std::string& name) {
  NvmlResult result;
  const Library library(name);
  result.is_loaded = library.is_open();
  if (!library.is_open()) {
    result.error = library.error();
    return result;
  }
  if (const int code = library.call("nvmlInit_v2"); code != kSuccess) {
    result.error = library.describe("nvmlInit_v2", code);
    return result;
  }
  std::array<char, 96> text{};
  if (library.call("nvmlSystemGetDriverVersion", text.data(), static_cast<unsigned>(text.size())) == kSuccess)
    result.facts.driver_version = text.data();
  if (int number = 0; library.call("nvmlSystemGetCudaDriverVersion_v2", &number) == kSuccess)
    result.facts.cuda_version = std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  unsigned count = 0;
  if (const int code = library.call("nvmlDeviceGetCount_v2", &count); code != kSuccess)
    result.error = library.describe("nvmlDeviceGetCount_v2", code);
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    const int code = library.call("nvmlDeviceGetHandleByIndex_v2", index, &device);
    if (code != kSuccess) {
      result.error = "GPU " + std::to_string(index) + ": " + library.describe("nvmlDeviceGetHandleByIndex_v2", code);
      continue;
    }
    result.facts.devices.push_back(facts_of(library, device));
  }
  library.call("nvmlShutdown");
  return result;
}

std::vector<std::string> describe_throttling(std::uint64_t reasons) {
  constexpr std::pair<std::uint64_t, const char*> kReasons[] = {
      {0x4, "power limit"},
      {0x8, "hardware slowdown"},
      {0x20, "temperature"},
      {0x40, "hardware: too hot"},
      {0x80, "hardware: power supply brake"},
  };
  std::vector<std::string> words;
  for (const auto& [bit, word] : kReasons) {
    if ((reasons & bit) != 0) words.emplace_back(word);
  }
  return words;
}

}  // namespace pharos::launch

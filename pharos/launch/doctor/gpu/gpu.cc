#include "pharos/launch/doctor/gpu/gpu.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <regex>

#include "pharos/base/text.h"
#include "pharos/launch/doctor/checks.h"

namespace pharos::launch {
namespace {

struct XidMeaning {
  std::int64_t code;
  const char* meaning;
  bool is_hardware;
};

// NVIDIA's list of Xid errors: those that end trainings, and whether the device is to blame.
constexpr XidMeaning kXidMeanings[] = {
    {13, "exception of a kernel (usually the program's fault)", false},
    {31, "memory page fault (usually the program's fault)", false},
    {43, "program stopped by an earlier fault", false},
    {45, "program was ended", false},
    {48, "double-bit memory error", true},
    {61, "fault of the device's microcontroller", true},
    {62, "fault of the device's microcontroller", true},
    {63, "memory row remapped", true},
    {64, "memory row could not be remapped", true},
    {74, "NVLink error", true},
    {79, "device has fallen off the bus", true},
    {92, "many single-bit memory errors", true},
    {94, "contained memory error", true},
    {95, "uncontained memory error", true},
    {109, "time-out of a context switch", true},
    {119, "the device's system processor does not answer", true},
    {120, "error of the device's system processor", true},
    {140, "uncorrectable memory error", true},
};

void worsen(Finding& finding, Verdict verdict, const std::string& value, const std::string& remedy) {
  finding.value += "; " + value;
  if (!finding.remedy.empty()) finding.remedy += "\n";
  finding.remedy += remedy;
  finding.verdict = std::max(finding.verdict, verdict);
}

nlohmann::json data_of(const GpuFacts& gpu) {
  nlohmann::json data = {{"name", gpu.name}, {"bus_id", gpu.bus_id}, {"throttle_reasons", gpu.throttle_reasons}};
  const auto add = [&](const char* name, std::optional<std::int64_t> value) {
    if (value) data[name] = *value;
  };
  add("memory_bytes", gpu.memory_bytes);
  add("free_bytes", gpu.free_bytes);
  add("temperature_celsius", gpu.temperature_celsius);
  add("clock_mhz", gpu.clock_mhz);
  add("most_clock_mhz", gpu.most_clock_mhz);
  add("uncorrected_errors", gpu.uncorrected_errors);
  add("link_width", gpu.link_width);
  data["processes"] = gpu.processes;
  return data;
}

void judge_errors(const GpuFacts& gpu, Finding& finding) {
  if (gpu.uncorrected_errors.value_or(0) > 0) {
    worsen(finding, Verdict::kFailure, std::to_string(*gpu.uncorrected_errors) + " uncorrected memory errors",
           "Results may be wrong: take the node out, reset the GPU (nvidia-smi -r) or have it replaced.");
  }
  if (gpu.has_failed_rows)
    worsen(finding, Verdict::kFailure, "a broken memory row could not be remapped", "Have the GPU replaced.");
  if (gpu.has_pending_rows)
    worsen(finding, Verdict::kWarning, "a memory row waits to be remapped", "Reset the GPU (nvidia-smi -r).");
}

void judge_speed(const GpuFacts& gpu, Finding& finding) {
  const auto reasons = describe_throttling(gpu.throttle_reasons);
  if (!reasons.empty()) {
    // A power limit alone is normal under load, and rare on an idle device.
    const bool is_power_only = (gpu.throttle_reasons & ~std::uint64_t{0x7}) == 0;
    worsen(finding, is_power_only ? Verdict::kNote : Verdict::kWarning, "slowed down by " + base::join(reasons, ", "),
           is_power_only ? "Compare its gemm line with the others'; nvidia-smi -q -d POWER shows the limit."
                         : "Check cooling and power supply of the node (nvidia-smi -q -d PERFORMANCE).");
  }
  constexpr std::int64_t kHotCelsius = 85;
  if (gpu.temperature_celsius.value_or(0) >= kHotCelsius)
    worsen(finding, Verdict::kWarning, "hot", "Check the cooling of the node.");
  if (gpu.link_width && gpu.most_link_width && *gpu.link_width < *gpu.most_link_width) {
    worsen(
        finding, Verdict::kWarning,
        "PCIe runs with " + std::to_string(*gpu.link_width) + " of " + std::to_string(*gpu.most_link_width) + " lanes",
        "The card or its riser sits badly: have it seated again.");
  }
}

void judge_use(const GpuFacts& gpu, Finding& finding) {
  if (!gpu.processes.empty()) {
    std::vector<std::string> numbers;
    for (const std::int64_t process : gpu.processes) numbers.push_back(std::to_string(process));
    worsen(finding, Verdict::kWarning, "in use by process " + base::join(numbers, ", "),
           "End what was left from an earlier job (nvidia-smi shows it); it takes memory and time.");
  } else if (gpu.memory_bytes && gpu.free_bytes && *gpu.free_bytes < *gpu.memory_bytes * 9 / 10) {
    worsen(finding, Verdict::kWarning, "memory is taken by a process that cannot be seen from here",
           "Look on the host, outside this container, with nvidia-smi.");
  }
}

Finding judge_gpu(const GpuFacts& gpu, std::size_t index) {
  Finding finding{.check = "gpu", .subject = std::to_string(index), .value = gpu.name};
  if (gpu.free_bytes) finding.value += ", " + base::format_bytes(static_cast<double>(*gpu.free_bytes)) + " free of";
  if (gpu.memory_bytes) {
    finding.value += (gpu.free_bytes ? " " : ", ") + base::format_bytes(static_cast<double>(*gpu.memory_bytes));
  }
  if (gpu.temperature_celsius) finding.value += ", " + std::to_string(*gpu.temperature_celsius) + " °C";
  if (gpu.clock_mhz) finding.value += ", " + std::to_string(*gpu.clock_mhz) + " MHz";
  if (gpu.most_clock_mhz) finding.value += " of " + std::to_string(*gpu.most_clock_mhz) + " MHz";
  finding.data = data_of(gpu);
  judge_errors(gpu, finding);
  judge_speed(gpu, finding);
  judge_use(gpu, finding);
  return finding;
}

/// Other ranks of this program measure the devices while this one looks at them.
void leave_out_own_ranks(GpuFacts& gpu) {
  std::error_code ignored;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  std::erase_if(gpu.processes, [&](std::int64_t process) {
    return std::filesystem::read_symlink("/proc/" + std::to_string(process) + "/exe", ignored) == own;
  });
  gpu.free_bytes.reset();
}

/// Whole text of /dev/kmsg, or what is there before reading it is refused. It never waits.
std::string read_kernel_log(const Node& node) {
  const int descriptor = ::open(node.path("/dev/kmsg").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::string text;
  std::array<char, 8192> record{};
  while (true) {
    const ssize_t count = ::read(descriptor, record.data(), record.size());
    if (count < 0 && (errno == EPIPE || errno == EINTR)) continue;  // records were overwritten; the next one follows
    if (count <= 0) break;
    text.append(record.data(), static_cast<std::size_t>(count));
  }
  ::close(descriptor);
  return text;
}

}  // namespace

Findings judge_gpus(const NvmlResult& nvml, std::optional<std::int64_t> expected, bool has_device_files) {
  const auto num_found = static_cast<std::int64_t>(nvml.facts.devices.size());
  Finding all{.check = "gpu", .subject = {}, .value = {}};
  all.data = {{"count", num_found}, {"driver", nvml.facts.driver_version}};
  const bool must_be_there = expected.value_or(0) > 0 || has_device_files;
  if (!nvml.is_loaded) {
    all.value = "no GPU driver found";
    all.verdict = must_be_there ? Verdict::kFailure : Verdict::kNote;
    all.remedy = must_be_there
                     ? "The library of the driver cannot be loaded (" + nvml.error +
                           "): install the driver, or start the container with the GPUs (--gpus all, --gres=gpu:N)."
                     : "Fine for recipes that run on the CPU; say --gpus N where GPUs must be here.";
  } else {
    all.value = counted(num_found, "device") + ", driver " + nvml.facts.driver_version + ", CUDA up to " +
                nvml.facts.cuda_version;
    if (!nvml.error.empty()) {
      worsen(all, Verdict::kFailure, nvml.error,
             "See dmesg for lines with NVRM; load the driver's module again or restart the node.");
    }
  }
  if (nvml.is_loaded && expected && num_found != *expected) {
    worsen(all, num_found < *expected ? Verdict::kFailure : Verdict::kNote,
           std::to_string(*expected) + " were expected",
           num_found < *expected ? "A GPU has fallen off the bus (nvidia-smi, dmesg), or the job did not ask for all "
                                   "(--gres=gpu:N, GPUS_PER_NODE)."
                                 : "Fewer are used than there are: raise GPUS_PER_NODE.");
  }
  Findings findings{all};
  for (std::size_t i = 0; i < nvml.facts.devices.size(); ++i) findings.push_back(judge_gpu(nvml.facts.devices[i], i));
  return findings;
}

std::vector<XidEvent> find_xid_events(const std::string& kernel_log) {
  static const std::regex pattern(R"(NVRM: Xid \(([^)]*)\): (\d{1,6}))");
  std::vector<XidEvent> events;
  for (std::sregex_iterator match(kernel_log.begin(), kernel_log.end(), pattern), end; match != end; ++match)
    events.push_back({.code = std::stoll((*match)[2]), .device = (*match)[1]});
  return events;
}

Findings judge_xid_events(const std::vector<XidEvent>& events) {
  std::map<std::pair<std::int64_t, std::string>, std::int64_t> counts;
  for (const XidEvent& event : events) ++counts[{event.code, event.device}];
  Findings findings;
  for (const auto& [kind, count] : counts) {
    const auto& [code, device] = kind;
    const auto* known = std::find_if(std::begin(kXidMeanings), std::end(kXidMeanings),
                                     [code = code](const XidMeaning& one) { return one.code == code; });
    const bool is_known = known != std::end(kXidMeanings);
    const bool is_hardware = is_known && known->is_hardware;
    findings.push_back(
        {.check = "gpu",
         .subject = "Xid " + std::to_string(code),
         .value = std::string(is_known ? known->meaning : "see NVIDIA's list of Xid errors") + ", " + device + ", " +
                  std::to_string(count) + " times in the kernel's log",
         .verdict = is_hardware ? Verdict::kWarning : Verdict::kNote,
         .remedy = is_hardware ? "Take the node out and reset the GPU; have it replaced when it comes back." : "",
         .data = {{"code", code}, {"device", device}, {"count", count}}});
  }
  return findings;
}

Findings check_gpu(const Node& node) {
  const bool has_device_files = node.exists("/dev/nvidiactl");
  NvmlResult nvml = read_nvml(node.nvml_library);
  if (node.has_other_ranks) std::for_each(nvml.facts.devices.begin(), nvml.facts.devices.end(), leave_out_own_ranks);
  Findings findings = judge_gpus(nvml, node.num_gpus, has_device_files);
  for (Finding& finding : judge_xid_events(find_xid_events(read_kernel_log(node))))
    findings.push_back(std::move(finding));
  return findings;
}

}  // namespace pharos::launch

// NVLink by NVML, which is declared here as far as it is used: its header is not on every machine that builds Pharos.
#include <climits>
#include <memory>
#include <utility>

#include "pharos/profile/counters/counter_tree.h"
#include "pharos/profile/library.h"

namespace pharos::profile {
namespace {

/// nvmlFieldValue_t. The value is an unsigned long long for the fields used here.
struct FieldValue {
  unsigned field = 0;
  unsigned scope = 0;
  long long timestamp_us = 0;
  long long latency_us = 0;
  int value_type = 0;
  int result = 0;
  unsigned long long value = 0;
};
static_assert(sizeof(FieldValue) == 40);

/// NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: KiB of payload since the driver was loaded.
constexpr unsigned kTransmit = 138, kReceive = 139;
/// As scope: the sum over all links of the GPU.
constexpr unsigned kAllLinks = UINT_MAX;

using DeviceHandle = void*;

struct Nvml {
  explicit Nvml(const Library& library)
      : init(library.function<int()>("nvmlInit_v2")),
        count(library.function<int(unsigned*)>("nvmlDeviceGetCount_v2")),
        handle(library.function<int(unsigned, DeviceHandle*)>("nvmlDeviceGetHandleByIndex_v2")),
        fields(library.function<int(DeviceHandle, int, FieldValue*)>("nvmlDeviceGetFieldValues")) {}

  bool is_whole() const { return init != nullptr && count != nullptr && handle != nullptr && fields != nullptr; }

  int (*init)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, DeviceHandle*);
  int (*fields)(DeviceHandle, int, FieldValue*);
};

/// Nothing where the GPU has no NVLink.
std::vector<CounterValue> read_links(const Nvml& nvml, DeviceHandle device) {
  static constexpr CounterKind kKinds[] = {{"transmit", 1024}, {"receive", 1024}};
  FieldValue values[] = {{.field = kTransmit, .scope = kAllLinks}, {.field = kReceive, .scope = kAllLinks}};
  if (nvml.fields(device, 2, values) != 0) return {};
  std::vector<CounterValue> counters;
  for (int i = 0; i < 2; ++i) {
    if (values[i].result == 0) counters.push_back({&kKinds[i], values[i].value});
  }
  return counters;
}

}  // namespace

ReadCounters open_nvlink(std::string& why_not) {
  const Nvml nvml(Library::find({"libnvidia-ml.so.1"}));
  unsigned num_devices = 0;
  if (!nvml.is_whole() || nvml.init() != 0 || nvml.count(&num_devices) != 0) {
    why_not = "there is no NVML (libnvidia-ml.so.1)";
    return nullptr;
  }
  std::vector<std::pair<Port, DeviceHandle>> devices;
  for (unsigned i = 0; i < num_devices; ++i) {
    DeviceHandle device = nullptr;
    if (nvml.handle(i, &device) != 0 || read_links(nvml, device).empty()) continue;
    devices.emplace_back(Port{PortKind::kNvlink, "gpu" + std::to_string(i), ""}, device);
  }
  if (devices.empty()) {
    why_not = "none of the " + std::to_string(num_devices) + " GPUs has NVLink";
    return nullptr;
  }
  return [nvml, devices = std::move(devices)] {
    Reading reading;
    for (const auto& [port, device] : devices) {
      if (auto values = read_links(nvml, device); !values.empty()) reading.push_back({port, std::move(values)});
    }
    return reading;
  };
}

}  // namespace pharos::profile

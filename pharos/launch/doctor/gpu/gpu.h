// Verdicts about the GPUs of a node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pharos/launch/doctor/finding.h"
#include "pharos/launch/doctor/gpu/nvml.h"

namespace pharos::launch {

/// `expected`: GPUs the node should have; nullopt: none are asked for. `has_device_files`: /dev/nvidia* are there.
Findings judge_gpus(const NvmlResult& nvml, std::optional<std::int64_t> expected, bool has_device_files);

struct XidEvent {
  std::int64_t code = 0;
  std::string device;  ///< "PCI:0000:9a:00"
};

/// Errors the NVIDIA driver reports in the kernel's log: "NVRM: Xid (PCI:0000:9a:00): 79, …", oldest first.
std::vector<XidEvent> find_xid_events(const std::string& kernel_log);
/// One line for all of a kind.
Findings judge_xid_events(const std::vector<XidEvent>& events);

}  // namespace pharos::launch

// What the logs of NCCL (NCCL_DEBUG=INFO) say about the network of a run, and whether GIN (transfers that kernels start
// themselves, which DeepEP's NCCL back-end needs) came up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/launch/doctor/finding.h"

namespace pharos::launch {

struct NcclLog {
  std::map<std::string, std::int64_t> networks;   ///< of "Using network …", with the number of lines
  std::map<std::string, std::int64_t> providers;  ///< of "NET/OFI Selected provider is …"
  std::string nccl_version, plugin_version;       ///< of "NCCL version …", "aws-ofi-nccl …"; empty: not in the log
  std::map<std::string, std::int64_t> warnings;   ///< text behind "NCCL WARN", with the number of lines
  std::map<std::string, std::string> variables;   ///< of "… set by environment to …"
  bool has_nccl_lines = false;
  bool lacks_plugin = false;       ///< no network plug-in was found, which is harmless where none is needed
  bool has_plugin_failed = false;  ///< one was found and found no provider
  std::int64_t num_socket_channels = 0, num_direct_channels = 0;  ///< connections "via NET/Socket", "…/GDRDMA"
  std::int64_t num_device_api = 0;                                ///< "Device API initialized"
  std::map<std::int64_t, std::int64_t> gin_types;  ///< of "GIN proxy mode enabled (type 2)", with the number of lines
};

/// Adds the lines of `text`, whatever stands between them.
void read_nccl_log(std::string_view text, NcclLog& log);

/// `expects_gin`: without the lines of GIN the verdict is a failure.
Findings judge_nccl_log(const NcclLog& log, bool expects_gin);

}  // namespace pharos::launch

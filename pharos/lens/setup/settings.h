// All that telemetry is told from outside, in the order in which it has to be asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pharos/lens/group.h"
#include "pharos/lens/setup/lens_config.h"
#include "pharos/lens/setup/sdk_settings.h"
#include "pharos/lens/variables/environment.h"

namespace pharos::lens {

/// --otel-enabled, --otel-service-name, --otel-span-groups.
struct LensFlags {
  std::optional<bool> enabled = {};
  std::optional<std::string> service_name = {};
  std::optional<std::string> span_groups = {};
};

struct LensSettings {
  LensConfig config;
  SdkSettings sdk;
  GroupMask groups = 0;               ///< of config.span_groups; 0 when disabled
  std::vector<std::string> warnings;  ///< sentences, the same on ranks with the same environment
};

/// Loads, applies the flags, validates. It does not look at the rank: either all ranks with the same environment get
/// through or none. Throws what load_lens_config(), validate() and, when telemetry is enabled, load_sdk_settings()
/// throw; when it is disabled, faults of the SDK's variables are warnings and `sdk` has its defaults.
LensSettings load_settings(const Environment& environment, const LoadOptions& options, const LensFlags& flags = {});

}  // namespace pharos::lens

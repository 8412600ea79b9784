#include "pharos/lens/setup/settings.h"

#include "pharos/base/error.h"

namespace pharos::lens {

LensSettings load_settings(const Environment& environment, const LoadOptions& options, const LensFlags& flags) {
  LensSettings settings;
  settings.config = load_lens_config(environment, options, settings.warnings);
  apply_flags(settings.config, flags.enabled, flags.service_name, flags.span_groups);
  validate(settings.config, settings.warnings);
  try {
    settings.sdk = load_sdk_settings(environment, settings.warnings);
  } catch (const base::UserError& error) {
    if (settings.config.enabled) throw;
    settings.warnings.push_back("Telemetry is off; if it were on: " + error.parts().what);
  }
  warn_of_standard_exporters(environment, settings.config, settings.warnings);
  if (settings.config.enabled) settings.groups = resolved_groups(settings.config);
  return settings;
}

}  // namespace pharos::lens

#include "pharos/hf/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pharos/hf/verify/session.h"

namespace pharos::hf {

bool VerifyResult::ok() const {
  return !checks.empty() && std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.ok(); });
}

Tolerances tolerances_for(const config::ModelConfig& model) {
  Tolerances tolerances;
  if (model.num_moe_experts || model.multi_latent_attention) {
    tolerances.trajectory_loss = 5e-4;
    tolerances.trajectory_grad_norm = 3e-3;
  }
  return tolerances;
}

VerifyResult verify(const std::filesystem::path& folder, const std::filesystem::path& oracle, comm::World& world,
                    const VerifyLayout& layout, const std::optional<Tolerances>& tolerances) {
  return VerifySession(folder, oracle, world, layout, tolerances).run();
}

VerifyResult verify(const std::filesystem::path& folder, const std::filesystem::path& oracle) {
  comm::World alone({}, {});
  return verify(folder, oracle, alone);
}

nlohmann::json to_json(const VerifyResult& result) {
  nlohmann::json checks = nlohmann::json::array();
  for (const Check& check : result.checks) {
    checks.push_back({{"name", check.name},
                      {"value", check.value},
                      {"tolerance", check.tolerance},
                      {"unit", check.unit},
                      {"ok", check.ok()}});
  }
  return {{"ok", result.ok()}, {"checks", std::move(checks)}};
}

std::string render_table(const VerifyResult& result) {
  std::size_t width = 10, failed = 0;
  for (const Check& check : result.checks) width = std::max(width, check.name.size());
  std::string text = fmt::format("{:<{}}  {:>11}  {:>11}\n", "check", width, "difference", "tolerance");
  for (const Check& check : result.checks) {
    failed += check.ok() ? 0 : 1;
    text += fmt::format("{:<{}}  {:>11.2e}  {:>11.2e}  {} {}\n", check.name, width, check.value, check.tolerance,
                        check.unit, check.ok() ? "" : "OUTSIDE");
  }
  return text + (failed == 0 ? fmt::format("All {} checks are within tolerance.\n", result.checks.size())
                             : fmt::format("{} of {} checks are outside tolerance.\n", failed, result.checks.size()));
}

}  // namespace pharos::hf

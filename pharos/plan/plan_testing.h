// Shared by the tests of plan.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "pharos/config/resolve.h"
#include "pharos/plan/plan.h"

namespace pharos::plan {

/// A recipe of the source tree, without ".yaml".
inline config::ResolvedConfig read(std::vector<std::string> overrides, std::int64_t world_size = 1,
                                   const std::string& recipe = "llama_27m") {
  const std::filesystem::path path =
      std::filesystem::path(PHAROS_TEST_DATA).parent_path().parent_path() / "recipes" / (recipe + ".yaml");
  return config::prepare({.recipe = path.string(), .overrides = std::move(overrides)}, world_size,
                         config::Purpose::kPlan);
}

inline Plan plan_of(std::vector<std::string> overrides, std::int64_t world_size = 1) {
  return make_plan(read(std::move(overrides), world_size), world_size);
}

inline std::int64_t total_of(const Plan& plan, const std::string& component) {
  for (const auto& one : plan.parameters.components) {
    if (one.name == component) return one.total;
  }
  return -1;
}

inline double bytes_of(const Plan& plan, const std::string& purpose, const std::string& operation) {
  double bytes = 0;
  for (const CommunicationPart& part : plan.communication.parts) {
    if (part.purpose == purpose && part.operation == operation) bytes += part.bytes();
  }
  return bytes;
}

}  // namespace pharos::plan

// Fuzz entry point of recipe files. Only UserError may leave the reader.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/config/overrides/assignment.h"
#include "pharos/config/overrides/interpolation.h"
#include "pharos/config/recipe/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  std::vector<pharos::config::Problem> problems;
  try {
    const auto recipe = pharos::config::parse_recipe(text, "fuzz.yaml", problems);
    pharos::config::Assignments assignments;
    assignments.merge(recipe.config, problems);
    for (const auto& block : recipe.when) {
      if (pharos::config::block_applies(block, recipe.resolved_parameters)) assignments.merge(block.config, problems);
    }
    for (const auto& [name, value] : assignments.values()) {
      pharos::config::interpolate(name, value, recipe.resolved_parameters, assignments, problems);
    }
  } catch (const pharos::base::UserError&) {
  }
  return 0;
}

// Named mixed-precision recipes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace pharos::config {

struct PrecisionRecipe {
  std::string name;
  std::vector<std::pair<std::string, std::string>>
      fields;  ///< field of mixed_precision (without section) and value text
};

/// Recipe by name, dashes and underscores being equal; nullptr when there is none.
const PrecisionRecipe* find_precision_recipe(const std::string& name);

}  // namespace pharos::config

// Back-ends of the flex token dispatcher.
#pragma once

#include <string>

#include "pharos/config/enums.h"

namespace pharos::config {

/// Why this build cannot use a back-end, and how to get by without it or with it; both empty: it can.
struct FlexBackendProblem {
  std::string what, fix;
  bool empty() const { return what.empty(); }
};

FlexBackendProblem flex_backend_problem(FlexBackend backend);

}  // namespace pharos::config

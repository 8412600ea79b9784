#include "pharos/config/flex_backend.h"

#include "pharos/config/schema/enum_names.h"

namespace pharos::config {

FlexBackendProblem flex_backend_problem(FlexBackend backend) {
  if (backend == FlexBackend::kNative) return {};
  const std::string name = enum_name(backend);
  return {"The back-end " + name + " of the flex dispatcher is not in this build, which has native only.",
          "Set model.moe_flex_dispatcher_backend=native (the same exchange over the process group) or "
          "model.moe_token_dispatcher_type=alltoall. To have " +
              name +
              ", add it over its library as an exchange function (pharos/nn/moe/dispatch/exchange.h) and build. "
              "`pharos plan` accepts it."};
}

}  // namespace pharos::config

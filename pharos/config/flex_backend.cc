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
              ", build Pharos with a class that implements nn::Dispatcher by its library and is made in "
              "nn::make_dispatcher(). `pharos plan` accepts it."};
}

}  // namespace pharos::config

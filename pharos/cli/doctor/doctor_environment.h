// `pharos doctor --profile`: the checks with the variables that a rank of `pharos launch` has.
#pragma once

#include <string>

namespace pharos::cli {

/// Becomes this program again, without --profile, in the environment of the network profile `name`; variables that are
/// set already win. It must be a new process image: the loader reads LD_LIBRARY_PATH only at the start. UserError when
/// there is no such profile or no /bin/sh.
[[noreturn]] void restart_with_profile(const std::string& name);

}  // namespace pharos::cli

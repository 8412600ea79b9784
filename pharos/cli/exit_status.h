// How a sub-command says which code to leave with when it is neither 0 nor an error.
#pragma once

#include "pharos/base/error.h"

namespace pharos::cli {

/// Set by a sub-command's callback; 0 unless set.
void set_exit_code(base::ExitCode code);
/// For codes with a meaning of their own (1: a comparison found differences).
void set_exit_code(int code);
int exit_code();

}  // namespace pharos::cli

#include "pharos/cli/exit_status.h"

namespace pharos::cli {
namespace {

int exit_status = 0;

}  // namespace

void set_exit_code(base::ExitCode code) { exit_status = static_cast<int>(code); }
void set_exit_code(int code) { exit_status = code; }
int exit_code() { return exit_status; }

}  // namespace pharos::cli

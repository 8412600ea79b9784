#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

#include "pharos/cli/commands.h"

namespace {

/// A standard stream that the caller has closed would lend its number to the next file or socket, and messages would
/// land there.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1 && open("/dev/null", O_RDWR) != descriptor) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  return pharos::cli::run(argc, argv);
}

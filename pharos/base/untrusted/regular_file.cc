#include "pharos/base/untrusted/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "pharos/base/error.h"

namespace pharos::base {
namespace {

[[noreturn]] void throw_not_regular(const std::filesystem::path& path) {
  throw UserError({.what = "'" + path.string() + "' is not a regular file.",
                   .where = path.string(),
                   .why = "It is a folder, a pipe, a socket or a device; this is the place of a file.",
                   .fix = "Remove it, or choose another folder with --run-dir."});
}

}  // namespace

int open_regular_file(const std::filesystem::path& path, int flags) {
  struct stat status {};
  // Looked at before as well: opening a device may already do something.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) throw_not_regular(path);
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644);
  if (descriptor < 0) {
    throw UserError({.what = "Cannot open '" + path.string() + "': " + std::strerror(errno) + ".",
                     .where = path.string(),
                     .fix = "Choose a folder this user may write to with --run-dir."});
  }
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  throw_not_regular(path);
}

}  // namespace pharos::base

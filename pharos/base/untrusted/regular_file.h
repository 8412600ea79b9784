// Files in a folder that others may have put something else into.
#pragma once

#include <filesystem>

namespace pharos::base {

/// Opens a file with `flags` of open(2) (O_CLOEXEC comes on top; O_CREAT makes it with mode 0644) and returns its
/// descriptor, which the caller closes. Never waits: UserError, which names the path, for a pipe, a socket, a device or
/// a folder in its place, and where it cannot be opened.
int open_regular_file(const std::filesystem::path& path, int flags);

}  // namespace pharos::base

// `pharos image run`: a command in an unpacked image, in a mount namespace of its own. What enroot does, for those who
// have none: no isolation of processes or network, and files of the host only where they are mounted.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "pharos/base/subprocess.h"

namespace pharos::launch {

struct ContainerMount {
  std::filesystem::path source;  ///< absolute, on the host
  std::filesystem::path target;  ///< absolute, in the image; made where it is missing
  bool is_read_only = false;
};

/// "SOURCE:TARGET[:ro|:rw]", several with commas between them, as --container-mounts of pyxis has it; "PATH" alone is
/// mounted at the same place. A relative SOURCE is one of the current folder. UserError for another form, for a
/// relative TARGET, for "/" as TARGET and for a SOURCE that does not exist.
std::vector<ContainerMount> parse_mounts(const std::string& text);

struct ContainerRun {
  std::filesystem::path image;
  std::vector<ContainerMount> mounts = {};
  std::filesystem::path work_folder = {};        ///< in the image; empty: "/"
  std::filesystem::path unpack_folder = "/tmp";  ///< a temporary folder is made in it, and removed at the end
  std::vector<std::string> words;                ///< program, found by PATH of the image, and its arguments
};

/// Unpacks the image, runs the command in it with the variables of /etc/environment set, and removes it again. SIGINT,
/// SIGTERM and SIGHUP go to the command; while the image is unpacked they are an InterruptedError. Returns its exit
/// code, 128 + signal when one ended it, 126 or 127 when it could not be run. UserError when the image cannot be
/// unpacked.
int run_in_image(const ContainerRun& run, const base::InterruptGuard& guard);

}  // namespace pharos::launch

// `pharos image build`: a squashfs file of a Dockerfile's image, or of Debian packages and this program.
#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "pharos/base/subprocess.h"
#include "pharos/launch/image/versions.h"

namespace pharos::launch {

struct ImageRequest {
  std::string name;
  std::string tag = "latest";
  std::filesystem::path output = ".";             ///< folder of NAME+TAG.sqsh
  bool is_dry_run = false;                        ///< prints the commands and makes nothing
  std::filesystem::path dockerfile = {};          ///< empty: docker/Dockerfile of the context
  std::filesystem::path context = ".";            ///< folder that COPY reads from
  std::string builder = "auto";                   ///< docker, podman, buildah or auto
  std::vector<std::string> build_arguments = {};  ///< K=V, each wins over versions.env beside the Dockerfile
};

/// OUTPUT/NAME+TAG.sqsh, as enroot calls it. UserError for a name or tag with other letters than it may hold.
std::filesystem::path image_path(const ImageRequest& request);

/// Builds the image of a Dockerfile with docker, podman or buildah, and makes a squashfs file of it: by enroot where
/// that is installed, else from the exported file system. UserError for a builder that is missing or cannot be used, a
/// missing tool or Dockerfile, a failing build or a full disk; nothing unfinished is left then, nor after an
/// InterruptedError.
void build_image(const ImageRequest& request, const base::InterruptGuard* guard, std::ostream& progress);

/// Builds an image for the CPU from packages of this machine's Debian release, this program, its libraries and recipes
/// `recipes`; no container engine is needed. `versions` becomes the image's table of versions. Errors as above; needs
/// mmdebstrap, dpkg and mksquashfs.
void build_cpu_image(const ImageRequest& request, const std::filesystem::path& recipes,
                     const std::vector<NamedVersion>& versions, const base::InterruptGuard* guard,
                     std::ostream& progress);

}  // namespace pharos::launch

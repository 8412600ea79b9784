// `pharos image inspect`: what a squashfs image holds, without unpacking it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/launch/image/versions.h"

namespace pharos::launch {

struct ImageFacts {
  std::int64_t file_bytes = 0;
  std::int64_t num_files = 0;  ///< inodes
  std::int64_t created_s = 0;  ///< Unix time
  std::string compression;     ///< "zstd", "gzip", …
  bool has_pharos = false;     ///< /usr/local/share/pharos/versions.env is there
  std::vector<NamedVersion> versions = {};
};

/// From the first 96 bytes of a squashfs file of version 4 (Linux, fs/squashfs/squashfs_fs.h). UserError for another
/// file and for one that is cut off. `file_bytes`: its size; `path` is for messages.
ImageFacts parse_superblock(std::string_view bytes, std::int64_t file_bytes, const std::filesystem::path& path);

/// UserError unless `path` is a regular file; it is not opened.
void require_image_file(const std::filesystem::path& path);

/// The same of a file, and its table of versions, which unsquashfs reads. UserError when that fails: a damaged image.
ImageFacts inspect_image(const std::filesystem::path& path);

}  // namespace pharos::launch

// The table of versions that an image is made of: docker/versions.env beside the Dockerfile, share/pharos/versions.env
// in the finished image.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch {

struct NamedVersion {
  std::string name;
  std::string version;
};

/// The table in `text`: lines NAME=VERSION, `#` starts a comment. UserError with file:line for another form and for a
/// name that stands there twice. `path` is for messages.
std::vector<NamedVersion> parse_version_table(std::string_view text, const std::filesystem::path& path);
std::vector<NamedVersion> read_version_table(const std::filesystem::path& path);

/// Names that a Dockerfile declares by ARG.
std::vector<std::string> declared_arguments(std::string_view dockerfile);

}  // namespace pharos::launch

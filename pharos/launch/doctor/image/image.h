// The closing check of a container image, without GPUs: everything of the table of versions it was built from is in it,
// in that version, and can be loaded. What the table does not name does not belong to the image.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "pharos/launch/doctor/node.h"
#include "pharos/launch/image/versions.h"

namespace pharos::launch {

/// What was found of one part.
struct FoundPart {
  std::string version;  ///< empty: it does not tell
  std::string path = {};
  std::string error = {};     ///< why it is not there; empty: it is
  bool needs_driver = false;  ///< it is there, and only the GPU driver, which the host brings, is missing
};

/// `version` of the table and what was found of `name`.
Finding judge_part(const std::string& name, const std::string& version, const FoundPart& found);

struct ImageOptions {
  std::vector<NamedVersion> versions;  ///< of the table
  std::string libtorch_version;        ///< of the running program
  std::size_t num_recipes = 0;
  std::function<void()> compute;  ///< a small product with libtorch, throws when it is wrong
};

/// One line for the program and for each part. Loads libraries and runs programs, each in a child process that has
/// until `deadline_ns` of base::monotonic_ns().
Findings check_image(const Node& node, const ImageOptions& options, std::int64_t deadline_ns);

}  // namespace pharos::launch

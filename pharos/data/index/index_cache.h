// Index arrays kept on disk between runs, under the names and in the format of Megatron Core's caches. A cache is only
// ever a saved computation: whatever is wrong with it costs a warning and the time to build the arrays again.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pharos/data/index/integer_array.h"

namespace pharos::data {

using WarningFunction = std::function<void(const std::string&)>;

class IndexCache {
 public:
  /// Files FOLDER/<md5 of description>-CLASS-SPLIT-{description.txt, ARRAY.npy}.
  IndexCache(std::filesystem::path folder, std::string description, const std::string& class_name,
             const std::string& split_name, WarningFunction warn);

  /// The arrays `names`, mapped; nullopt if any file is missing. A file that is damaged, truncated or of another
  /// dataset gives a warning and nullopt.
  std::optional<std::vector<IntegerArray>> load(const std::vector<std::string>& names) const;

  /// Writes the arrays and then the description, each through a temporary file of its own and a rename, so that
  /// processes that build at once leave whole files. A folder that cannot be written gives a warning.
  void store(const std::vector<std::pair<std::string, const IntegerArray*>>& arrays) const;

  /// "Rebuilding the index cache PATH: REASON."
  void warn_damaged(const std::string& reason) const;

  std::filesystem::path path(const std::string& suffix) const;

 private:
  std::filesystem::path folder_;
  std::string description_;
  std::string stem_;
  WarningFunction warn_;
};

}  // namespace pharos::data

// The override grammar of the command line (Hydra's basic overrides, without sweeps):
//   a.b=v  +a.b=v  ++a.b=v  ~a.b  ~a.b=v
// docs/configuration.md shows it in full.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/config/overrides/value.h"

namespace pharos::config {

struct Override {
  enum class Operation { kSet, kAdd, kForceAdd, kDelete };
  Operation operation = Operation::kSet;
  std::vector<std::string> path = {};  ///< "a.b.0" as {"a", "b", "0"}
  std::optional<Value> value = {};     ///< empty only for `~a.b`
  std::string text = {};               ///< as given
};

/// Parses one word of the command line. Throws UserError naming the word, the column and what was expected there;
/// sweeps (`a=1,2`, range(), choice(), glob()) and packages (`a@b=c`) are refused with the reason.
Override parse_override(std::string_view text);

/// `path` with dots.
std::string join_path(const std::vector<std::string>& path);

}  // namespace pharos::config

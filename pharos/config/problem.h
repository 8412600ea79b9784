// What is wrong with a configuration, and all of it at once.
#pragma once

#include <string>
#include <vector>

#include "pharos/base/error.h"

namespace pharos::config {

/// One fault. `message` is a whole sentence with field, value and broken rule; the rest may be empty.
struct Problem {
  std::string field = {};    ///< dotted name, "recipe", "override" or "parameter"
  std::string message = {};  ///< "train.train_iters = abc is not an integer."
  std::string origin =
      {};  ///< where the values come from: "recipe quickstart (recipes/quickstart.yaml:14)", "command line"
  std::string remedy = {};  ///< what to do
};

/// The problem as text: message, then indented origin and remedy.
std::string format_problem(const Problem& problem);

/// All problems of a configuration; its text lists every one of them.
class ConfigErrors : public base::UserError {
 public:
  /// `problems` must not be empty.
  explicit ConfigErrors(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

/// Throws ConfigErrors unless `problems` is empty.
void throw_if_any(const std::vector<Problem>& problems);

}  // namespace pharos::config

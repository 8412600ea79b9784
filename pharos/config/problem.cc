#include "pharos/config/problem.h"

#include <algorithm>

namespace pharos::config {
namespace {

constexpr std::size_t kMaxShown = 50;

base::UserError::Parts describe(const std::vector<Problem>& problems) {
  if (problems.size() == 1) {
    const Problem& only = problems.front();
    return {.what = only.message, .where = only.origin, .fix = only.remedy};
  }
  base::UserError::Parts parts;
  parts.what = std::to_string(problems.size()) + " problems in the configuration:";
  const std::size_t num_shown = std::min(problems.size(), kMaxShown);
  for (std::size_t i = 0; i < num_shown; ++i) parts.what += "\n- " + format_problem(problems[i]);
  if (num_shown < problems.size()) parts.what += "\n- and " + std::to_string(problems.size() - num_shown) + " more";
  return parts;
}

}  // namespace

std::string format_problem(const Problem& problem) {
  std::string text = problem.message;
  if (!problem.origin.empty()) text += "\n    where: " + problem.origin;
  if (!problem.remedy.empty()) text += "\n    fix: " + problem.remedy;
  return text;
}

ConfigErrors::ConfigErrors(std::vector<Problem> problems)
    : base::UserError(describe(problems)), problems_(std::move(problems)) {}

void throw_if_any(const std::vector<Problem>& problems) {
  if (!problems.empty()) throw ConfigErrors(problems);
}

}  // namespace pharos::config

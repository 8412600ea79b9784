#include "pharos/config/problem.h"

namespace pharos::config {
namespace {

base::UserError::Parts describe(const std::vector<Problem>& problems) {
  if (problems.size() == 1) {
    const Problem& only = problems.front();
    return {.what = only.message, .where = only.origin, .fix = only.remedy};
  }
  base::UserError::Parts parts;
  parts.what = std::to_string(problems.size()) + " problems in the configuration:";
  for (const Problem& problem : problems) parts.what += "\n- " + format_problem(problem);
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

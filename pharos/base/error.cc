#include "pharos/base/error.h"

namespace pharos::base {
namespace {

std::string render(const UserError::Parts& parts) {
  std::string text = parts.what;
  if (!parts.where.empty()) text += "\n  where: " + parts.where;
  if (!parts.why.empty()) text += "\n  why: " + parts.why;
  if (!parts.fix.empty()) text += "\n  fix: " + parts.fix;
  return text;
}

}  // namespace

UserError::UserError(Parts parts) : std::runtime_error(render(parts)), parts_(std::move(parts)) {}

void fail_check(const char* file, int line, const char* condition, const std::string& detail) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + condition + " does not hold: " + detail);
}

}  // namespace pharos::base

#include "pharos/launch/slurm/shell_text.h"

#include "pharos/base/error.h"

namespace pharos::launch::slurm {
namespace {

constexpr std::string_view kHarmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";

bool is_harmless(std::string_view word) {
  return !word.empty() && word.find_first_not_of(kHarmless) == std::string_view::npos;
}

void refuse(std::string_view word, std::string_view letters, const char* name) {
  if (word.find_first_of(letters) == std::string_view::npos) return;
  throw base::UserError({.what = std::string("A word of the command line holds ") + name + ": it cannot be passed on.",
                         .where = std::string(word.substr(0, word.find_first_of(letters))) + "…",
                         .fix = "Leave it out."});
}

}  // namespace

std::string quote(std::string_view word) {
  refuse(word, std::string_view("\0", 1), "a NUL byte");
  if (is_harmless(word)) return std::string(word);
  std::string quoted = "'";
  for (const char letter : word) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

std::string quote_all(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += quote(word);
  }
  return text;
}

std::string sbatch_line(std::string_view word) {
  refuse(word, std::string_view("\0\n\r", 3), "a line break or a NUL byte");
  if (is_harmless(word)) return "#SBATCH " + std::string(word) + "\n";
  std::string quoted = "\"";
  for (const char letter : word) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return "#SBATCH " + quoted + "\"\n";
}

}  // namespace pharos::launch::slurm

#include "pharos/launch/slurm/shell_text.h"

#include "pharos/base/error.h"
#include "pharos/base/subprocess.h"

namespace pharos::launch::slurm {

std::string quote(const std::string& word) { return base::shell_line({word}); }

std::string quote_all(const std::vector<std::string>& words) { return base::shell_line(words); }

std::string sbatch_line(const std::string& word) {
  if (word.find_first_of("\n\r") != std::string::npos) {
    throw base::UserError({.what = "A word for sbatch holds a line break, which a script cannot carry.",
                           .where = word.substr(0, word.find_first_of("\n\r")),
                           .fix = "Leave out the line break."});
  }
  if (base::shell_line({word}) == word) return "#SBATCH " + word + "\n";
  std::string quoted;
  for (const char letter : word) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return "#SBATCH \"" + quoted + "\"\n";
}

}  // namespace pharos::launch::slurm

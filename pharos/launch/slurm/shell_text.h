// Words as a POSIX shell and #SBATCH lines read them.
#pragma once

#include <string>
#include <vector>

namespace pharos::launch::slurm {

/// `word` so that a shell reads it as one word with exactly these characters; as it is where all of them are harmless.
std::string quote(const std::string& word);

/// Quoted words with blanks between them.
std::string quote_all(const std::vector<std::string>& words);

/// "#SBATCH WORD\n", with the quotes and backslashes that sbatch takes off. UserError for a line break, which sbatch
/// cannot read there.
std::string sbatch_line(const std::string& word);

}  // namespace pharos::launch::slurm

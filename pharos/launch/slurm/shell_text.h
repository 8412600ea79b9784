// Words and values as a POSIX shell and #SBATCH lines read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch::slurm {

/// `word` so that a shell reads it as one word with exactly these bytes: as it is where every character is harmless,
/// else in single quotes. UserError for a NUL byte, which no shell can carry.
std::string quote(std::string_view word);

/// Quoted words with blanks between them.
std::string quote_all(const std::vector<std::string>& words);

/// "#SBATCH WORD\n", with the quotes and backslashes that sbatch takes off. UserError for a line break, which sbatch
/// cannot read there.
std::string sbatch_line(std::string_view word);

}  // namespace pharos::launch::slurm

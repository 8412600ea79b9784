// Running SLURM's own commands and reading what they print.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::launch::slurm {

struct CommandResult {
  int code = 0;             ///< exit code, 128 + signal, 127 without the program, 124 when the time was over
  std::string output = {};  ///< standard output
  std::string errors = {};  ///< standard error
};

/// Runs `words`, looked up in PATH, with nothing on standard input, and waits at most `limit` (none: without limit);
/// then it is killed. `on_output` gets the whole output so far whenever there is more. UserError when no process can be
/// made.
CommandResult run_command(const std::vector<std::string>& words,
                          std::optional<std::chrono::milliseconds> limit = std::chrono::seconds(20),
                          const std::function<void(std::string_view)>& on_output = {});

/// The file that `name` is found as in PATH.
std::optional<std::filesystem::path> find_in_path(const std::string& name);

}  // namespace pharos::launch::slurm

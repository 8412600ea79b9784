// pharos launch: a training job on SLURM.
#pragma once

#include <CLI/CLI.hpp>

namespace pharos::cli {

void add_launch_command(CLI::App& app);

}  // namespace pharos::cli

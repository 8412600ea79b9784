// `pharos doctor`: what is wrong with this node, and with the nodes of a job, before a training finds out.
#pragma once

#include <CLI/CLI.hpp>

namespace pharos::cli {

void add_doctor_command(CLI::App& app);

}  // namespace pharos::cli

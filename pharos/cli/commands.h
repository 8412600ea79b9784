// The command line: `pharos SUB-COMMAND …`. Only wiring; each sub-command lives in its own *_command.cc.
#pragma once

namespace pharos::cli {

/// Parses the command line, runs the sub-command and returns the exit code (base::ExitCode). User errors, command-line
/// errors among them, are printed to standard error without a stack and give 2.
int run(int argc, char** argv);

}  // namespace pharos::cli

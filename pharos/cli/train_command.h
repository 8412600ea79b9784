// `pharos train RECIPE [key=value …]`.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace pharos::cli {

/// `words`: the whole command line without the program's name; with --nproc every rank gets it.
void add_train_command(CLI::App& app, const std::vector<std::string>& words);

}  // namespace pharos::cli

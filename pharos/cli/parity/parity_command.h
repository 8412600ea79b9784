// `pharos parity`: does every layout train the same model as one rank?
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_parity_command(CLI::App& app);

}  // namespace pharos::cli

// `pharos env show [RECIPE key=value …]`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_env_command(CLI::App& app);

}  // namespace pharos::cli

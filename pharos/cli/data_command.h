// `pharos data prepare|inspect|info|trigram`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_data_command(CLI::App& app);

}  // namespace pharos::cli

// `pharos config fields|explain`: the schema for people.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_config_command(CLI::App& app);

}  // namespace pharos::cli

// `pharos recipes list|show`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_recipes_command(CLI::App& app);

}  // namespace pharos::cli

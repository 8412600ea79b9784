// `pharos plan RECIPE [key=value …]`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_plan_command(CLI::App& app);

}  // namespace pharos::cli

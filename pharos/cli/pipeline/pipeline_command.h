// `pharos pipeline report RUN`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_pipeline_command(CLI::App& app);

}  // namespace pharos::cli

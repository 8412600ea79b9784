// `pharos trace dump PATH`, `pharos trace show RUN`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_trace_command(CLI::App& app);

}  // namespace pharos::cli

// `pharos goodput`: what of the time of a run, over all its attempts, went into steps that count.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_goodput_command(CLI::App& app);

}  // namespace pharos::cli

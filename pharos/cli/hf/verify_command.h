// `pharos hf verify A B` and `pharos hf verify FOLDER --oracle FILE`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

/// `hf`: the sub-command that it belongs to.
void add_verify_command(CLI::App& hf);

}  // namespace pharos::cli

// `pharos hf import|export|verify`.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_hf_command(CLI::App& app);

}  // namespace pharos::cli

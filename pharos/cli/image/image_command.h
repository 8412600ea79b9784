// `pharos image`: build, look into and run the images that jobs run in.
#pragma once

namespace CLI {
class App;
}

namespace pharos::cli {

void add_image_command(CLI::App& app);

}  // namespace pharos::cli

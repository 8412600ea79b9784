#include "pharos/cli/goodput/goodput_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pharos/cli/goodput/goodput_report.h"

namespace pharos::cli {
namespace {

struct Options {
  std::vector<std::string> folders;
  bool is_json = false;
};

void show_goodput(const Options& options) {
  std::vector<RunGoodput> runs;
  for (const std::string& folder : options.folders) runs.push_back({folder, train::read_goodput(folder)});
  if (options.is_json) {
    std::cout << goodput_json(runs).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << render_goodput(runs);
  }
}

}  // namespace

void add_goodput_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("goodput", "What of a run's time, over all its attempts, went into steps that count");
  auto options = std::make_shared<Options>();
  command->add_option("runs", options->folders, "Run folders")->required();
  command->add_flag("--json", options->is_json, "One JSON object; seconds, and fractions of one");
  command->callback([options] { show_goodput(*options); });
}

}  // namespace pharos::cli

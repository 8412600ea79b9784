#include "pharos/cli/commands.h"

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/cli/config_command.h"
#include "pharos/cli/data_command.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/generate_command.h"
#include "pharos/cli/hf_command.h"
#include "pharos/cli/plan_command.h"
#include "pharos/cli/recipes_command.h"
#include "pharos/cli/run_source.h"
#include "pharos/cli/trace_command.h"
#include "pharos/cli/train_command.h"

namespace pharos::cli {

int run(int argc, char** argv) {
  set_main_entry_ns(base::monotonic_ns());
  CLI::App app("Pharos trains large language models and lets you look into the training.", "pharos");
  app.set_version_flag("--version", PHAROS_VERSION);
  app.require_subcommand(1);
  add_train_command(app);
  add_plan_command(app);
  add_generate_command(app);
  add_recipes_command(app);
  add_config_command(app);
  add_data_command(app);
  add_hf_command(app);
  add_trace_command(app);
  try {
    app.parse(argc, argv);
    return exit_code();
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    std::cerr << "error: " << error.what() << "\n  fix: see `pharos --help` or `pharos SUB-COMMAND --help`.\n";
    return static_cast<int>(base::ExitCode::kUserError);
  } catch (const base::UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(base::ExitCode::kUserError);
  } catch (const std::exception& error) {
    std::cerr << "training failure: " << error.what() << "\n";
    return static_cast<int>(base::ExitCode::kTrainingFailure);
  }
}

}  // namespace pharos::cli

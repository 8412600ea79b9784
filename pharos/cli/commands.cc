#include "pharos/cli/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/cli/config_command.h"
#include "pharos/cli/data_command.h"
#include "pharos/cli/doctor/doctor_command.h"
#include "pharos/cli/env/env_command.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/generate/generate_command.h"
#include "pharos/cli/goodput/goodput_command.h"
#include "pharos/cli/hf/hf_command.h"
#include "pharos/cli/image/image_command.h"
#include "pharos/cli/launch/launch_command.h"
#include "pharos/cli/parity/parity_command.h"
#include "pharos/cli/pipeline/pipeline_command.h"
#include "pharos/cli/plan_command.h"
#include "pharos/cli/recipes_command.h"
#include "pharos/cli/run_source.h"
#include "pharos/cli/trace/trace_command.h"
#include "pharos/cli/train_command.h"

namespace pharos::cli {
namespace {

/// CLI11 says only that a sub-command is missing; this names the word and what is like it.
void check_sub_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  if (std::find(known.begin(), known.end(), argv[1]) != known.end()) return;
  const auto nearest = base::nearest_names(argv[1], known);
  throw base::UserError({.what = std::string("There is no sub-command '") + argv[1] + "'.",
                         .where = "command line",
                         .why = "There are " + base::join(known, ", ") + ".",
                         .fix = nearest.empty()
                                    ? "See `pharos --help`."
                                    : "Did you mean `pharos " + base::join(nearest, "` or `pharos ") + "`?"});
}

/// The command-line library takes a bare `++` for an end of words and drops it.
void check_words(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "++") continue;
    throw base::UserError({.what = "Cannot read the override `++`: a key and a value are missing.",
                           .where = "command line",
                           .fix = "Write ++key=value to add or replace a key."});
  }
}

/// What was printed may still lie in a buffer, and a full disk shows only when it is written.
void check_output() {
  std::cout.flush();
  if (std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw base::UserError({.what = "Standard output could not be written; what it got is not whole.",
                         .where = "standard output",
                         .fix = "Check the disk or the reader behind it."});
}

}  // namespace

int run(int argc, char** argv) {
  set_main_entry_ns(base::monotonic_ns());
  // A file that grows beyond the limit of the process is then an error of the write, with a message, like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Pharos trains large language models and lets you look into the training.", "pharos");
  app.set_version_flag("--version", PHAROS_VERSION);
  app.require_subcommand(1);
  add_train_command(app, {argv + std::min(argc, 1), argv + argc});
  add_launch_command(app);
  add_plan_command(app);
  add_parity_command(app);
  add_generate_command(app);
  add_recipes_command(app);
  add_config_command(app);
  add_data_command(app);
  add_hf_command(app);
  add_trace_command(app);
  add_goodput_command(app);
  add_pipeline_command(app);
  add_env_command(app);
  add_image_command(app);
  add_doctor_command(app);
  try {
    check_sub_command(app, argc, argv);
    check_words(argc, argv);
    app.parse(argc, argv);
    if (!app.got_subcommand("train")) check_output();  // a run does not fail for its console
    return exit_code();
  } catch (const CLI::Success& success) {  // --help, --version
    const int code = app.exit(success);
    return std::cout.flush().good() ? code : static_cast<int>(base::ExitCode::kUserError);
  } catch (const CLI::ParseError& error) {
    std::cerr << "error: " << error.what() << "\n  fix: see `pharos --help` or `pharos SUB-COMMAND --help`.\n";
    return static_cast<int>(base::ExitCode::kUserError);
  } catch (const base::UserError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(base::ExitCode::kUserError);
  } catch (const base::TrainingError& error) {
    std::cerr << "training failure: " << error.what() << "\n";
    return static_cast<int>(base::ExitCode::kTrainingFailure);
  } catch (const std::exception& error) {
    std::cerr << "internal error: " << error.what() << "\n";
    return static_cast<int>(base::ExitCode::kTrainingFailure);
  }
}

}  // namespace pharos::cli

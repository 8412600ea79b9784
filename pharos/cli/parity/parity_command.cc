#include "pharos/cli/parity/parity_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/cli/exit_status.h"
#include "pharos/cli/integer_option.h"
#include "pharos/cli/parity/parity_cells.h"
#include "pharos/cli/parity/parity_result.h"
#include "pharos/cli/run_source.h"
#include "pharos/config/resolve.h"
#include "pharos/launch/rank_process.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string recipe;
  std::vector<std::string> overrides;
  std::vector<std::string> cells;
  std::int64_t num_steps = 20;
  std::string folder;
  bool as_json = false;
};

/// A folder for the runs: the user's, which stays, or one that is removed at the end.
class Workspace {
 public:
  explicit Workspace(const std::string& folder) : keeps_(!folder.empty()) {
    if (keeps_) {
      path_ = fs::absolute(folder);
      base::make_directories(path_);
      return;
    }
    std::string name = (fs::temp_directory_path() / "pharos_parity_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw base::UserError({.what = "Cannot make '" + name + "': " + std::strerror(errno) + ".",
                             .fix = "Name a folder for the runs with --run-dir, or set TMPDIR."});
    }
    path_ = name;
  }
  ~Workspace() {
    std::error_code ignored;
    if (!keeps_) fs::remove_all(path_, ignored);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool keeps_;
};

/// Only what the comparison needs is on; the last step is saved.
std::vector<std::string> overrides_of(const Arguments& arguments, const ParityCell& cell) {
  const std::string steps = std::to_string(arguments.num_steps);
  std::vector<std::string> words = arguments.overrides;
  words.insert(words.end(), cell.overrides.begin(), cell.overrides.end());
  for (const std::string& word :
       {"train.train_iters=" + steps, std::string("train.train_samples=null"), std::string("train.exit_interval=null"),
        std::string("train.iterations_to_skip=[]"), "checkpoint.save_interval=" + steps,
        std::string("checkpoint.save=null"), std::string("checkpoint.save_optim=false"),
        std::string("validation.eval_iters=0"), std::string("logger.tensorboard_dir=null")}) {
    words.push_back(word);
  }
  return words;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Why the configuration does not allow this layout, or nothing.
std::optional<std::string> refusal(const Arguments& arguments, const ParityCell& cell) {
  try {
    config::prepare({.recipe = arguments.recipe, .overrides = overrides_of(arguments, cell)}, cell.world_size,
                    config::Purpose::kTrain, complete_config);
    return std::nullopt;
  } catch (const base::UserError& error) {
    return first_line(error.what());
  }
}

/// Runs `pharos train` for the cell, its output in a file; returns the wait status.
int run_training(const Arguments& arguments, const ParityCell& cell, const fs::path& folder, const fs::path& output) {
  launch::ProcessOptions options;
  options.program = launch::own_program();
  options.arguments = {"pharos", "train", arguments.recipe};
  for (const std::string& word : overrides_of(arguments, cell)) options.arguments.push_back(word);
  for (const std::string& word :
       {std::string("--nproc"), std::to_string(cell.world_size), std::string("--run-dir"), folder.string()})
    options.arguments.push_back(word);
  options.variables = launch::own_variables();
  options.output_descriptor = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (options.output_descriptor < 0) {
    throw base::UserError({.what = "Cannot write '" + output.string() + "': " + std::strerror(errno) + ".",
                           .fix = "Choose another folder with --run-dir."});
  }
  const pid_t pid = launch::start_process(options);
  ::close(options.output_descriptor);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

ParityRow run_cell(const Arguments& arguments, const ParityCell& cell, const fs::path& workspace) {
  ParityRow row;
  row.name = cell.name;
  row.world_size = cell.world_size;
  if (const auto reason = refusal(arguments, cell)) {
    row.verdict = ParityRow::Verdict::kSkipped;
    row.reason = *reason;
    return row;
  }
  const fs::path folder = workspace / cell.name, output = workspace / (cell.name + ".txt");
  const int status = run_training(arguments, cell, folder, output);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    row.verdict = ParityRow::Verdict::kFailed;
    const std::string text = base::read_file(output);
    row.reason = text.substr(text.size() - std::min<std::size_t>(text.size(), 2000));
    return row;
  }
  row.run = read_parity_run(folder, arguments.num_steps);
  return row;
}

void run_parity(const Arguments& arguments) {
  const auto cells = select_parity_cells(arguments.cells);
  const Workspace workspace(arguments.folder);
  const ParityTolerance tolerance;
  std::vector<ParityRow> rows;
  rows.push_back(run_cell(arguments, parity_reference(), workspace.path()));
  if (rows.front().verdict != ParityRow::Verdict::kSame) {
    throw base::UserError({.what = "The run on one rank, which the others are compared with, did not succeed.",
                           .where = arguments.recipe,
                           .why = rows.front().reason,
                           .fix = "Give a recipe and overrides that train on one rank."});
  }
  rows.front().verdict = ParityRow::Verdict::kReference;
  bool is_good = true;
  for (const ParityCell& cell : cells) {
    if (!arguments.as_json) std::cerr << fmt::format("{} …\n", cell.name) << std::flush;
    ParityRow row = run_cell(arguments, cell, workspace.path());
    if (row.verdict == ParityRow::Verdict::kSame) {
      row.difference = compare_parity_runs(rows.front().run, row.run);
      if (!row.difference.within(tolerance)) row.verdict = ParityRow::Verdict::kDifferent;
    }
    // A layout that was asked for by name must be comparable.
    is_good = is_good && (row.verdict == ParityRow::Verdict::kSame ||
                          (row.verdict == ParityRow::Verdict::kSkipped && arguments.cells.empty()));
    rows.push_back(std::move(row));
  }
  if (arguments.as_json) {
    std::cout << parity_json(rows, tolerance).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  } else {
    std::cout << render_parity_table(rows, tolerance);
  }
  const bool any_compared = std::any_of(
      rows.begin() + 1, rows.end(), [](const ParityRow& row) { return row.verdict != ParityRow::Verdict::kSkipped; });
  if (!is_good || !any_compared) set_exit_code(1);
}

}  // namespace

void add_parity_command(CLI::App& app) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("parity", "Train a few steps in many layouts and compare each with one rank");
  command->add_option("recipe", arguments->recipe, "Recipe by name or path (pharos recipes list)")->required();
  command->add_option("overrides", arguments->overrides,
                      "key=value …: fields of the configuration or parameters of the recipe");
  command->add_option("--cells", arguments->cells, "Layouts to compare, for example dp2,tp2-sp (default: all)")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--steps", arguments->num_steps, "Steps to train in each (default: 20)")
      ->check(whole_number<std::int64_t>(2, 100000));
  command->add_option("--run-dir", arguments->folder, "Folder that keeps the runs (default: a temporary one)");
  command->add_flag("--json", arguments->as_json, "As JSON (docs/parallelism.md)");
  command->callback([arguments] { run_parity(*arguments); });
}

}  // namespace pharos::cli

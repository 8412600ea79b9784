#include "pharos/cli/pipeline/pipeline_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <limits>
#include <memory>

#include "pharos/cli/integer_option.h"
#include "pharos/cli/pipeline/pipeline_report.h"
#include "pharos/config/limits.h"

namespace pharos::cli {

void add_pipeline_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("pipeline", "Pipelines: why ranks of a run were idle");
  command->require_subcommand(1);
  CLI::App* report = command->add_subcommand(
      "report", "Planned against measured bubble of a run, in its parts, and what would have given less");
  auto options = std::make_shared<PipelineReportOptions>();
  report->add_option("run", options->run_folder, "Run folder")->required();
  report->add_option("--step", options->step, "Only this step (default: the mean of the last steps)")
      ->check(whole_number<std::int64_t>(0, std::numeric_limits<std::int64_t>::max()));
  report
      ->add_option("--replica", options->replica, "Which of several pipelines, by the global rank that is first in it")
      ->check(whole_number<std::int64_t>(0, config::kMostRanks))
      ->capture_default_str();
  report->add_option("--format", options->format, "text, json or svg")
      ->check(CLI::IsMember({"text", "json", "svg"}))
      ->capture_default_str();
  report->add_option("--output", options->output, "File to write (default: standard output)");
  report->callback([options] { report_pipeline(*options, std::cout, std::cerr); });
}

}  // namespace pharos::cli

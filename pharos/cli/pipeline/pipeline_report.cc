#include "pharos/cli/pipeline/pipeline_report.h"

#include <filesystem>
#include <ostream>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/model/stages.h"
#include "pharos/pipeline/report/measured_file.h"
#include "pharos/pipeline/report/render_report.h"

namespace pharos::cli {
namespace {

namespace fs = std::filesystem;

void require_run_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  throw base::UserError({.what = "There is no folder " + folder.string() + ".",
                         .why = "The report is made from what the ranks of a run wrote into its trace/ folder.",
                         .fix = "Give the folder that --run-dir named."});
}

std::vector<pipeline::MeasuredStep> measured_steps(const fs::path& folder, std::optional<std::int64_t> only_step,
                                                   std::ostream& warnings) {
  std::int64_t num_damaged = 0;
  std::vector<pipeline::MeasuredStep> steps = pipeline::read_measured_steps(folder, &num_damaged, only_step);
  if (steps.empty() && only_step)
    steps = pipeline::read_measured_steps(folder, &num_damaged);  // to say which there are
  if (num_damaged > 0)
    warnings << "note: lines left out because they are damaged: " << num_damaged << ", in "
             << (folder / "trace").string() << "\n";
  if (!steps.empty()) return steps;
  throw base::UserError(
      {.what = "No pipeline was measured in " + folder.string() + ".",
       .why = "Ranks of a pipeline write trace/pipeline_rank_*.jsonl. A run with one pipeline stage writes none, nor "
              "does one that ended before its first measured step.",
       .fix = "Give the folder of a run with model.pipeline_model_parallel_size above 1."});
}

/// [stage]; empty when the run's configuration does not say.
std::vector<int> layers_of(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / "run.yaml", error)) return {};
  const config::ModelConfig model = config::load_run_yaml(folder / "run.yaml").config.model;
  if (!model.num_layers) return {};
  std::vector<int> layers;
  for (const model::Stage& stage : model::stages_of(model)) layers.push_back(static_cast<int>(stage.num_layers));
  return layers;
}

std::string rendered(const pipeline::BubbleReport& report, const std::string& format) {
  if (format == "json") return pipeline::report_json(report);
  return format == "svg" ? pipeline::report_svg(report) : pipeline::report_text(report);
}

}  // namespace

void report_pipeline(const PipelineReportOptions& options, std::ostream& out, std::ostream& warnings) {
  const fs::path folder = options.run_folder;
  require_run_folder(folder);
  const auto report =
      pipeline::make_report(measured_steps(folder, options.step, warnings),
                            {.step = options.step, .replica = options.replica, .layers = layers_of(folder)});
  const std::string text = rendered(report, options.format);
  if (options.output.empty()) {
    out << text;
  } else {
    base::write_output_file(options.output, text);
  }
}

}  // namespace pharos::cli

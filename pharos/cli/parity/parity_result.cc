#include "pharos/cli/parity/parity_result.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "pharos/base/error.h"
#include "pharos/cli/generate/generate_source.h"

namespace pharos::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double relative(double reference, double value) {
  if (reference == value) return 0;
  const double difference = std::abs(value - reference) / std::max(std::abs(reference), 1e-30);
  return std::isnan(difference) ? kInfinity : difference;
}

double largest_relative(const std::vector<double>& reference, const std::vector<double>& values) {
  if (reference.size() != values.size()) return kInfinity;
  double largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) largest = std::max(largest, relative(reference[i], values[i]));
  return largest;
}

/// A key's bias adds the same to every score of a query: softmax does not see it, and its gradient is all rounding.
/// Rotary positions, which turn it, and norms behind it take that freedom away.
bool is_free_value(const config::ModelConfig& config, const std::string& piece) {
  return !config.qk_layernorm && config.position_embedding_type != config::PositionEmbedding::kRope &&
         piece.ends_with(".self_attention.k.bias");
}

void compare_weights(const ParityRun& reference, const ParityRun& run, ParityDifference& difference) {
  const auto left = load_generate_source(reference.folder), right = load_generate_source(run.folder);
  const auto expected = left.model->parameters(), found = right.model->parameters();
  PHAROS_CHECK(expected.size() == found.size(), "runs of different models");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& one = *expected[i];
    for (std::size_t piece = 0; piece < one.pieces.size(); ++piece) {
      if (is_free_value(left.model->config(), one.pieces[piece].name)) continue;
      const auto part = [&](const GenerateSource& source, const tensor::Parameter& parameter) {
        return tensor::piece_view(parameter, parameter.data, piece, source.model->mesh(), 0).to(at::kDouble);
      };
      const at::Tensor a = part(left, one), b = part(right, *found[i]);
      const double norm = std::max(a.norm().item<double>(), 1e-30);
      double distance = (a - b).norm().item<double>() / norm;
      if (std::isnan(distance)) distance = kInfinity;
      if (distance < difference.weights) continue;
      difference.weights = distance;
      difference.worst_tensor = one.pieces[piece].name;
    }
  }
}

const char* verdict_text(ParityRow::Verdict verdict) {
  static constexpr const char* kTexts[] = {"reference", "same", "DIFFERENT", "skipped", "FAILED"};
  return kTexts[static_cast<int>(verdict)];
}

bool has_result(const ParityRow& row) {
  return row.verdict != ParityRow::Verdict::kSkipped && row.verdict != ParityRow::Verdict::kFailed;
}

}  // namespace

ParityRun read_parity_run(const std::filesystem::path& run_folder, std::int64_t num_steps) {
  ParityRun run;
  run.folder = run_folder;
  std::ifstream file(run_folder / "metrics.jsonl");
  std::vector<double> times;
  const auto number = [](const nlohmann::json& line, const char* key) {
    return line.contains(key) && line[key].is_number() ? line[key].get<double>()
                                                       : std::numeric_limits<double>::quiet_NaN();
  };
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object() || !line.contains("loss")) continue;
    run.losses.push_back(number(line, "loss"));
    run.grad_norms.push_back(number(line, "grad_norm"));
    if (!run.losses.empty()) times.push_back(number(line, "step_time_ms"));
    run.peak_memory_bytes = std::max(run.peak_memory_bytes, number(line, "peak_memory_bytes"));
  }
  if (static_cast<std::int64_t>(run.losses.size()) != num_steps) {
    throw base::UserError({.what = fmt::format("The run made {} of {} steps.", run.losses.size(), num_steps),
                           .where = (run_folder / "metrics.jsonl").string(),
                           .fix = "See log.txt beside it."});
  }
  if (times.size() > 1) times.erase(times.begin());
  std::sort(times.begin(), times.end());
  run.median_step_ms = times[times.size() / 2];
  return run;
}

ParityDifference compare_parity_runs(const ParityRun& reference, const ParityRun& run) {
  ParityDifference difference;
  difference.loss = largest_relative(reference.losses, run.losses);
  difference.grad_norm = largest_relative(reference.grad_norms, run.grad_norms);
  compare_weights(reference, run, difference);
  return difference;
}

std::string render_parity_table(const std::vector<ParityRow>& rows, const ParityTolerance& tolerance) {
  std::string text = fmt::format("{:<26} {:>5}  {:>9}  {:>9}  {:>9}  {:>8}  {:>8}  {}\n", "layout", "ranks", "loss",
                                 "grad norm", "weights", "ms/step", "MiB/rank", "verdict");
  for (const ParityRow& row : rows) {
    if (!has_result(row)) {
      text += fmt::format("{:<26} {:>5}  {}: {}\n", row.name, row.world_size, verdict_text(row.verdict), row.reason);
      continue;
    }
    const auto& difference = row.difference;
    text += fmt::format("{:<26} {:>5}  {:>9.1e}  {:>9.1e}  {:>9.1e}  {:>8.1f}  {:>8.0f}  {}\n", row.name,
                        row.world_size, difference.loss, difference.grad_norm, difference.weights,
                        row.run.median_step_ms, row.run.peak_memory_bytes / 0x1p20, verdict_text(row.verdict));
    if (row.verdict == ParityRow::Verdict::kDifferent) {
      text += fmt::format("{:<26}        worst tensor: {}\n", "", difference.worst_tensor);
    }
  }
  text += fmt::format(
      "Largest relative differences from one rank; the same: loss ≤ {:.0e}, grad norm ≤ {:.0e} (each step), weights ≤ "
      "{:.0e} (each tensor, L2).\n",
      tolerance.loss, tolerance.grad_norm, tolerance.weights);
  const auto num_skipped = std::count_if(
      rows.begin(), rows.end(), [](const ParityRow& row) { return row.verdict == ParityRow::Verdict::kSkipped; });
  if (num_skipped > 0) text += fmt::format("{} of {} layouts were not compared.\n", num_skipped, rows.size() - 1);
  return text;
}

nlohmann::json parity_json(const std::vector<ParityRow>& rows, const ParityTolerance& tolerance) {
  nlohmann::json cells = nlohmann::json::array();
  for (const ParityRow& row : rows) {
    nlohmann::json cell = {{"name", row.name}, {"world_size", row.world_size}, {"verdict", verdict_text(row.verdict)}};
    if (!row.reason.empty()) cell["reason"] = row.reason;
    if (has_result(row)) {
      cell["loss"] = row.difference.loss;
      cell["grad_norm"] = row.difference.grad_norm;
      cell["weights"] = row.difference.weights;
      cell["worst_tensor"] = row.difference.worst_tensor;
      cell["losses"] = row.run.losses;
      cell["step_ms"] = row.run.median_step_ms;
      cell["peak_memory_bytes"] = row.run.peak_memory_bytes;
    }
    cells.push_back(std::move(cell));
  }
  return {{"tolerance", {{"loss", tolerance.loss}, {"grad_norm", tolerance.grad_norm}, {"weights", tolerance.weights}}},
          {"cells", std::move(cells)}};
}

}  // namespace pharos::cli

// What a short training run left behind, and how far two such runs are apart.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace pharos::cli {

/// Largest differences between a run and the reference that still count as the same model.
struct ParityTolerance {
  double loss = 2e-6;       ///< relative, each step: sums of fp32 in another order
  double grad_norm = 1e-5;  ///< relative, each step: a sum of squares of such sums
  /// ‖w - w'‖ / ‖w‖ of the worst tensor after the last step. Adam divides by the root of the second moment: an element
  /// whose gradient is all rounding error moves by a whole learning rate in a direction of its own. Biases of keys,
  /// whose gradient is nothing else, are left out.
  double weights = 2e-5;
};

struct ParityRun {
  std::vector<double> losses, grad_norms;  ///< [step]
  double median_step_ms = 0;               ///< without the first step
  double peak_memory_bytes = 0;            ///< of rank 0
  std::filesystem::path folder;            ///< run folder, with a checkpoint of the last step
};

struct ParityDifference {
  double loss = 0, grad_norm = 0, weights = 0;
  std::string worst_tensor;
  bool within(const ParityTolerance& tolerance) const {
    return loss <= tolerance.loss && grad_norm <= tolerance.grad_norm && weights <= tolerance.weights;
  }
};

/// Reads metrics.jsonl of a run of `num_steps` steps. UserError when steps are missing.
ParityRun read_parity_run(const std::filesystem::path& run_folder, std::int64_t num_steps);

/// `run` against `reference`; a value that is not a number makes the difference infinite.
ParityDifference compare_parity_runs(const ParityRun& reference, const ParityRun& run);

/// One row of the table.
struct ParityRow {
  std::string name;
  std::int64_t world_size = 1;
  enum class Verdict : std::uint8_t { kReference, kSame, kDifferent, kSkipped, kFailed };
  Verdict verdict = Verdict::kSame;
  std::string reason;  ///< of a cell that was skipped or failed
  ParityRun run;
  ParityDifference difference;
};

std::string render_parity_table(const std::vector<ParityRow>& rows, const ParityTolerance& tolerance);
nlohmann::json parity_json(const std::vector<ParityRow>& rows, const ParityTolerance& tolerance);

}  // namespace pharos::cli

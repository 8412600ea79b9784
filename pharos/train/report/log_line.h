// The lines that people and scripts read in a training log, byte for byte Megatron's (megatron-telemetry.md 9.1,
// bridge-config.md 7.5); one difference: NaN and negative averages are shown, not left out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pharos::train {

struct LogLine {
  std::int64_t wall_ns = 0;
  std::int64_t iteration = 0;  ///< completed iterations
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t skipped_samples = 0;
  double elapsed_ms_per_iteration = 0;
  std::optional<double> tflops_per_device;
  std::optional<double> learning_rate;
  std::int64_t global_batch_size = 0;
  std::vector<std::pair<std::string, double>> losses;  ///< name, average over the interval's advanced iterations
  double loss_scale = 1;
  std::optional<double> grad_norm;
  std::optional<std::int64_t> num_zeros;
  std::optional<double> params_norm;
  std::int64_t num_skipped_iterations = 0;
  std::int64_t num_nan_iterations = 0;
};

/// " [YYYY-MM-DD HH:MM:SS.ffffff] iteration … |", without a newline.
std::string render_log_line(const LogLine& line);

/// " validation loss at iteration N | lm loss value: … | lm loss PPL: … | " framed by rows of dashes, three lines.
/// place: "iteration 100", "iteration 100 on validation set", …
std::string render_validation_lines(const std::string& place, double loss);

/// "  [time] successfully saved checkpoint from iteration       N to DIR".
std::string render_saved_line(std::int64_t wall_ns, std::int64_t iteration, const std::string& folder);

}  // namespace pharos::train

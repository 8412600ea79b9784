#include "pharos/train/report/log_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pharos/base/clock.h"

namespace pharos::train {
namespace {

/// A number in scientific notation as Python prints it; the sign of a NaN says nothing and is dropped.
std::string scientific(double value) { return std::isnan(value) ? "NAN" : fmt::format("{:.6E}", value); }

std::string fixed(double value, int digits) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}f}", value, digits);
}

}  // namespace

std::string render_log_line(const LogLine& line) {
  std::string text =
      fmt::format(" [{}] iteration {:8d}/{:8d} | consumed samples: {:12d} |", base::format_local_time(line.wall_ns),
                  line.iteration, line.train_iters, line.consumed_samples);
  if (line.skipped_samples > 0) text += fmt::format(" skipped samples: {:12d} |", line.skipped_samples);
  text += fmt::format(" elapsed time per iteration (ms): {} |", fixed(line.elapsed_ms_per_iteration, 1));
  if (line.tflops_per_device)
    text += fmt::format(" throughput per GPU (TFLOP/s/GPU): {} |", fixed(*line.tflops_per_device, 1));
  if (line.learning_rate) text += fmt::format(" learning rate: {} |", scientific(*line.learning_rate));
  text += fmt::format(" global batch size: {:5d} |", line.global_batch_size);
  for (const auto& [name, value] : line.losses) text += fmt::format(" {}: {} |", name, scientific(value));
  text += fmt::format(" loss scale: {} |", fixed(line.loss_scale, 1));
  if (line.grad_norm) text += fmt::format(" grad norm: {} |", fixed(*line.grad_norm, 3));
  if (line.num_zeros) text += fmt::format(" num zeros: {} |", *line.num_zeros);
  if (line.params_norm) text += fmt::format(" params norm: {} |", fixed(*line.params_norm, 3));
  text += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |",
                      line.num_skipped_iterations, line.num_nan_iterations);
  return text;
}

std::string render_validation_lines(const std::string& place, double loss) {
  const std::string text = fmt::format(" validation loss at {} | lm loss value: {} | lm loss PPL: {} | ", place,
                                       scientific(loss), scientific(std::exp(std::min(20.0, loss))));
  const std::string dashes(text.size(), '-');
  return dashes + "\n" + text + "\n" + dashes;
}

std::string render_saved_line(std::int64_t wall_ns, std::int64_t iteration, const std::string& folder) {
  return fmt::format("  [{}] successfully saved checkpoint from iteration {:7d} to {}",
                     base::format_local_time(wall_ns), iteration, folder);
}

}  // namespace pharos::train

// Does a Hugging Face folder, run by Pharos, compute what the reference implementation computed?
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pharos/config/enums.h"

namespace pharos::hf {

/// One comparison. `value` is the largest difference found; NaN is never within tolerance.
struct Check {
  std::string name;
  double value = 0;
  double tolerance = 0;
  std::string unit;  ///< "absolute" or "relative L2"
  bool ok() const { return value <= tolerance; }
};

struct VerifyResult {
  std::vector<Check> checks;
  bool ok() const;
};

/// Largest differences that rounding explains in a dense model in float32, each with a margin of about ten
/// (measured between 1 and 2 threads, and between float32 and float64).
struct Tolerances {
  double logits = 3e-5;                ///< absolute, values up to about 5
  double hidden = 3e-5;                ///< absolute, times max(1, largest value / 5)
  double loss = 5e-6;                  ///< absolute
  double gradient = 3e-5;              ///< relative L2 per tensor
  double grad_norm = 2e-4;             ///< absolute
  double trajectory_loss = 3e-5;       ///< absolute, largest over the steps
  double trajectory_grad_norm = 2e-4;  ///< likewise
};

/// Loads `folder` in float32 onto `device` and compares with `oracle` (a safetensors file: input_ids, labels, logits,
/// loss, grad.NAME, grad_norm, hidden.*, batches.*) and with the optimizer steps of trajectory.json beside the oracle
/// or in `folder`: logits, losses, hidden states, every gradient, the gradient norm, AdamW with clipping over all
/// steps. UserError when a file is missing, damaged, or belongs to another model, and when the device is not there.
VerifyResult verify(const std::filesystem::path& folder, const std::filesystem::path& oracle,
                    config::DeviceKind device = config::DeviceKind::kCpu, const Tolerances& tolerances = {});

/// {"ok": bool, "checks": [{"name", "value", "tolerance", "unit", "ok"}, …]}; a value that is no number is null.
nlohmann::json to_json(const VerifyResult& result);

/// One line a check, for people.
std::string render_table(const VerifyResult& result);

}  // namespace pharos::hf

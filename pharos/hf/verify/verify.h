// Does a Hugging Face folder, run by Pharos in some layout, compute what the reference implementation computed?
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pharos/comm/mesh.h"
#include "pharos/comm/world.h"
#include "pharos/config/model_config.h"

namespace pharos::hf {

/// One comparison. `value` is the largest difference found; NaN is never within tolerance.
struct Check {
  std::string name;
  double value = 0;
  double tolerance = 0;
  std::string unit;  ///< "absolute", "relative L2" or "tokens"
  bool ok() const { return value <= tolerance; }
};

struct VerifyResult {
  std::vector<Check> checks;
  bool ok() const;
};

/// Largest differences that rounding explains in float32, each with a margin of about ten (measured between 1 and 2
/// threads, and between float32 and float64).
struct Tolerances {
  double logits = 3e-5;                ///< absolute, values up to about 5
  double hidden = 3e-5;                ///< absolute, times max(1, largest value / 5)
  double loss = 5e-6;                  ///< absolute
  double gradient = 3e-5;              ///< relative L2 per tensor
  double grad_norm = 2e-4;             ///< absolute
  double trajectory_loss = 3e-5;       ///< absolute, largest over the steps
  double trajectory_grad_norm = 2e-4;  ///< likewise
  double router_logits = 3e-5;         ///< absolute, times max(1, largest value / 5)
  double router_weights = 1e-5;        ///< absolute, values up to 1
};

/// For a model like `model`. Trajectories of models with experts or latent attention are noisier: Adam's first steps
/// are close to the sign of a gradient, and a token that goes to another expert moves a loss by about 1e-3.
Tolerances tolerances_for(const config::ModelConfig& model);

/// How the model is divided over the ranks; what is left of them divides the rows of a batch.
struct VerifyLayout {
  std::int64_t tensor = 1, pipeline = 1, expert = 1;
  std::optional<std::int64_t> expert_tensor = {};  ///< without it 1
  std::optional<std::int64_t> data = {};           ///< without it as few ranks as the other sizes allow
  bool sequence_parallel = false;

  comm::ParallelSizes sizes() const;
  /// All ranks.
  std::int64_t world_size() const;
};

/// UserError with every reason why `folder` cannot be compared with `oracle` in that layout: what verify() throws, and
/// sizes that do not divide the model or the batch. Allocates nothing.
void check_verify(const std::filesystem::path& folder, const std::filesystem::path& oracle, const VerifyLayout& layout);

/// Loads `folder` in float32, this rank its part, and compares with `oracle` (a safetensors file: input_ids, labels,
/// logits, loss, grad.NAME, grad_norm, hidden.*, router.*, batches.*) and with the optimizer steps of trajectory.json
/// beside the oracle or in `folder`: logits, losses, every gradient, the gradient norm, AdamW with clipping over all
/// steps; on one rank hidden states and the decisions of routers too. The rows of a batch are divided over the
/// data-parallel ranks. Every rank of `world` must call it; the result is the same on all. UserError when a file is
/// missing, damaged, or belongs to another model.
VerifyResult verify(const std::filesystem::path& folder, const std::filesystem::path& oracle, comm::World& world,
                    const VerifyLayout& layout = {}, const std::optional<Tolerances>& tolerances = std::nullopt);

/// On one rank of the CPU.
VerifyResult verify(const std::filesystem::path& folder, const std::filesystem::path& oracle);

/// {"ok": bool, "checks": [{"name", "value", "tolerance", "unit", "ok"}, …]}; a value that is no number is null.
nlohmann::json to_json(const VerifyResult& result);

/// One line a check, for people.
std::string render_table(const VerifyResult& result);

}  // namespace pharos::hf

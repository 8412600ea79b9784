// Counters and small state of a run that a resume needs beside tensors. Knows no torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace pharos::checkpoint {

/// Randomness is counter-based and the sampler follows from the consumed samples, so the seed and these counters are
/// all there is to random state and data position.
struct TrainState {
  std::int64_t step = 0;  ///< completed iterations
  std::int64_t consumed_train_samples = 0;
  std::int64_t skipped_train_samples = 0;
  std::int64_t consumed_valid_samples = 0;
  double floating_point_operations_so_far = 0;
  std::uint64_t seed = 0;
  nlohmann::json scheduler = nlohmann::json::object();  ///< as the scheduler describes itself
  nlohmann::json optimizer = nlohmann::json::object();  ///< its numbers beside tensors: updates done, loss scale
};

nlohmann::json to_json(const TrainState& state);

/// UserError naming `where` and the key when one is missing or of another type.
TrainState parse_train_state(const nlohmann::json& json, const std::string& where);

}  // namespace pharos::checkpoint

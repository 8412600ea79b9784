#include "pharos/checkpoint/train_state.h"

#include "pharos/base/error.h"

namespace pharos::checkpoint {

nlohmann::json to_json(const TrainState& state) {
  return {{"step", state.step},
          {"consumed_train_samples", state.consumed_train_samples},
          {"skipped_train_samples", state.skipped_train_samples},
          {"consumed_valid_samples", state.consumed_valid_samples},
          {"floating_point_operations_so_far", state.floating_point_operations_so_far},
          {"rng", {{"seed", state.seed}}},
          {"scheduler", state.scheduler},
          {"optimizer", state.optimizer}};
}

TrainState parse_train_state(const nlohmann::json& json, const std::string& where) {
  TrainState state;
  const char* key = "";
  try {
    const auto read = [&](const char* name, auto& value) { json.at(key = name).get_to(value); };
    read("step", state.step);
    read("consumed_train_samples", state.consumed_train_samples);
    read("skipped_train_samples", state.skipped_train_samples);
    read("consumed_valid_samples", state.consumed_valid_samples);
    read("floating_point_operations_so_far", state.floating_point_operations_so_far);
    json.at(key = "rng").at("seed").get_to(state.seed);
    state.scheduler = json.at(key = "scheduler");
    state.optimizer = json.at(key = "optimizer");
  } catch (const nlohmann::json::exception& error) {
    throw base::UserError({.what = "'" + where + "' has no usable '" + key + "'.",
                           .where = where,
                           .why = error.what(),
                           .fix = "Load another iteration with checkpoint.ckpt_step."});
  }
  return state;
}

}  // namespace pharos::checkpoint

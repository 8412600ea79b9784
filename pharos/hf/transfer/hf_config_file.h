// config.json of an export: the source's with what differs changed.
#pragma once

#include <nlohmann/json.hpp>

#include "pharos/hf/hf_config.h"

namespace pharos::hf {

/// `source`, the config.json that was read as `source_model`, changed to describe `hf`, in its own spelling and with
/// every key that Pharos does not know. A model with rotary positions keeps max_position_embeddings unless it was
/// trained on longer sequences.
nlohmann::json change_hf_config(nlohmann::json source, const HfModel& source_model, HfModel hf);

}  // namespace pharos::hf

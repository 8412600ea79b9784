// model.pipeline_model_parallel_layout: what sits on which pipeline stage.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pharos/config/overrides/value.h"

namespace pharos::config {

/// Stages in order, each a text of E (embedding), t (decoder layer), m (MTP layer) and L (loss); stages may be empty.
/// Grammar: `|` separates stages, commas and blanks are ignored, `x*n` repeats a character, `(…)*n` a text that may
/// hold
/// `|`. Throws UserError naming the position of a fault; at most 65536 characters result.
std::vector<std::string> parse_pipeline_layout(const std::string& layout);

/// The list form [[embedding, decoder], [decoder, loss]] as text "Et|tL"; nullopt leaves any other value alone.
std::optional<Value> layout_text_of(const Value& value);

}  // namespace pharos::config

// The tokenizer a configuration names.
#pragma once

#include <memory>

#include "pharos/config/run_config.h"
#include "pharos/data/text/tokenizer.h"

namespace pharos::train {

/// ByteLevel (also when no type is set) or NullTokenizer; UserError for the types this release cannot read.
std::unique_ptr<data::Tokenizer> make_tokenizer(const config::TokenizerConfig& config);

}  // namespace pharos::train

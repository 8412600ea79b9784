// Finds and loads the model that `pharos generate` is pointed at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pharos/data/text/tokenizer.h"
#include "pharos/model/transformer.h"

namespace pharos::cli {

struct GenerateSource {
  std::unique_ptr<model::Transformer> model;   ///< whole, on one rank, weights loaded
  std::unique_ptr<data::Tokenizer> tokenizer;  ///< null: token ids only
  std::vector<std::int64_t> stop_tokens;       ///< end-of-document tokens; the first one begins a document
  std::optional<std::int64_t> iteration;       ///< of the checkpoint
  std::vector<std::string> warnings;           ///< for people

  /// Tokens are bytes of text; otherwise they are shown as numbers.
  bool is_text() const { return dynamic_cast<const data::ByteTokenizer*>(tokenizer.get()) != nullptr; }
};

/// `path`: a run folder (run.yaml and checkpoints/), a checkpoint (iter_0000100), a folder of checkpoints, or a Hugging
/// Face folder (config.json and *.safetensors). On the CPU a bf16 or fp16 model computes in fp32. UserError when it is
/// none of these, holds no checkpoint, or is damaged.
GenerateSource load_generate_source(const std::filesystem::path& path);

}  // namespace pharos::cli

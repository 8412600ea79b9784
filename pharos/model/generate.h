// Text generation as token ids: one pass over the prompt, then one pass per token with a key-value cache. Knows no
// tokenizer and no files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "pharos/config/model_config.h"
#include "pharos/model/transformer.h"
#include "pharos/nn/context.h"

namespace pharos::model {

/// How the next token is drawn. Filters act in the order of `transformers`: temperature, top-k, top-p.
struct SamplingOptions {
  double temperature = 1;  ///< divides the logits; 0 always takes the most probable token
  std::int64_t top_k =
      0;             ///< only the k most probable tokens (and those that tie with the last); 0 or k >= vocabulary: all
  double top_p = 1;  ///< only the fewest most probable tokens that together reach this probability, in (0, 1]
};

/// UserError naming the option when one is out of range.
void validate(const SamplingOptions& options);

/// Draws one token. logits: [vocabulary] of any floating type, without padding. The uniform number behind the draw
/// depends on `key` (tensor::stream_key) and `position` alone. TrainingError when a logit is NaN or none is finite.
std::int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, std::uint64_t key,
                          std::int64_t position);

/// The key generate() draws sample number `sample` of `seed` with; positions count from the first token of the prompt.
std::uint64_t sampling_key(std::uint64_t seed, std::int64_t sample);

enum class StopReason : std::uint8_t {
  kStopToken,      ///< the model said so: one of stop_tokens was drawn
  kMaxTokens,      ///< max_tokens were drawn
  kPositionLimit,  ///< the model has no further position (position_limit)
  kCallback,       ///< the callback returned false
};

/// "stop_token", "max_tokens", "position_limit", "callback".
const char* stop_reason_name(StopReason reason);

struct GenerateOptions {
  SamplingOptions sampling;
  std::int64_t max_tokens = 256;
  std::vector<std::int64_t> stop_tokens;  ///< end generation and are not part of the result
  std::uint64_t seed = 0;
  std::int64_t sample = 0;  ///< samples of one seed are independent of each other
};

struct Generation {
  std::vector<std::int64_t> tokens;  ///< without prompt and stop token
  StopReason reason = StopReason::kMaxTokens;
  std::int64_t prefill_ns = 0;  ///< pass over the prompt; 0 when the previous call had the same prompt
  std::int64_t decode_ns = 0;   ///< everything after
};

/// Tokens (prompt and generated) the model can hold: seq_length with learned positions, no limit otherwise.
std::optional<std::int64_t> position_limit(const config::ModelConfig& config);

/// Receives every token as soon as it is drawn; false stops.
using TokenCallback = std::function<bool(std::int64_t token)>;

class Generator {
 public:
  /// `model` is whole (embedding and output on one stage), materialised, and outlives the generator.
  explicit Generator(const Transformer& model) : model_(model) {}

  /// Continues `prompt` (not empty) until prompt and result together fill position_limit(). UserError when the prompt
  /// is longer than that limit, a token is not in the vocabulary, or an option is out of range; TrainingError as
  /// sample_token().
  Generation generate(const std::vector<std::int64_t>& prompt, const GenerateOptions& options,
                      const TokenCallback& callback = {});

 private:
  /// Logits [vocabulary] after `tokens`, which follow what the cache holds.
  at::Tensor next_logits(const std::vector<std::int64_t>& tokens);
  /// Logits after `prompt`, from the cache when it was the previous prompt too.
  at::Tensor prompt_logits(const std::vector<std::int64_t>& prompt, std::int64_t capacity);

  const Transformer& model_;
  nn::KeyValueCache cache_;
  std::int64_t capacity_ = 0;
  std::vector<std::int64_t> prompt_;  ///< whose keys and values the cache begins with
  at::Tensor prompt_logits_;
};

}  // namespace pharos::model

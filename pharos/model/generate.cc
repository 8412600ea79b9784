#include "pharos/model/generate.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pharos/base/clock.h"
#include "pharos/base/error.h"
#include "pharos/tensor/random.h"

namespace pharos::model {
namespace {

/// Uniform in [0, 1) with 53 random bits.
double draw_uniform(std::uint64_t key, std::int64_t position) {
  const auto index = static_cast<std::uint64_t>(position);
  const auto words = tensor::philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                                    {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  const std::uint64_t bits = (std::uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

/// Most probable token; the first of several.
std::int64_t find_best(const float* logits, std::int64_t count) {
  std::int64_t best = -1;
  float highest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(logits[i])) throw base::TrainingError(fmt::format("The model gives NaN as logit of token {}.", i));
    if (logits[i] > highest) {
      highest = logits[i];
      best = i;
    }
  }
  if (best < 0 || std::isinf(highest)) throw base::TrainingError("The model gives no finite largest logit.");
  return best;
}

struct Candidate {
  std::int64_t token;
  double weight;  ///< probability up to a common factor
};

/// The `top_k` largest logits in order of token; more when several tie with the smallest of them.
std::vector<Candidate> weigh(const float* logits, std::int64_t count, const SamplingOptions& options, float highest) {
  float threshold = -std::numeric_limits<float>::infinity();
  if (options.top_k > 0 && options.top_k < count) {
    std::vector<float> sorted(logits, logits + count);
    std::nth_element(sorted.begin(), sorted.begin() + (options.top_k - 1), sorted.end(), std::greater<>());
    threshold = sorted[static_cast<std::size_t>(options.top_k - 1)];
  }
  std::vector<Candidate> candidates;
  candidates.reserve(static_cast<std::size_t>(threshold < highest && std::isfinite(threshold) ? options.top_k : count));
  for (std::int64_t i = 0; i < count; ++i) {
    if (logits[i] < threshold) continue;
    candidates.push_back({i, std::exp((static_cast<double>(logits[i]) - highest) / options.temperature)});
  }
  return candidates;
}

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

/// Keeps the candidates before which, in order of falling probability, less than `top_p` has been gathered.
void keep_nucleus(std::vector<Candidate>& candidates, double top_p) {
  const double enough = top_p * total_weight(candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
  double gathered = 0;
  std::size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || gathered < enough)) gathered += candidates[kept++].weight;
  candidates.resize(kept);
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

void check_prompt(const std::vector<std::int64_t>& prompt, const config::ModelConfig& config) {
  PHAROS_CHECK(!prompt.empty(), "a prompt has at least one token");
  const auto limit = position_limit(config);
  if (limit && static_cast<std::int64_t>(prompt.size()) > *limit) {
    throw base::UserError(
        {.what = fmt::format("The prompt has {} tokens, the model has {} positions.", prompt.size(), *limit),
         .why = "Its position embeddings are a learned table of model.seq_length rows.",
         .fix = fmt::format("Give a prompt of at most {} tokens.", *limit)});
  }
  for (const std::int64_t token : prompt) {
    if (token >= 0 && token < *config.vocab_size) continue;
    throw base::UserError({.what = fmt::format("Token {} of the prompt is not in the model's vocabulary.", token),
                           .why = fmt::format("Token ids go from 0 to {}.", *config.vocab_size - 1),
                           .fix = "Use the tokenizer the model was trained with."});
  }
}

}  // namespace

void validate(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    throw base::UserError(
        {.what = fmt::format("temperature = {} is not a finite number of at least 0.", options.temperature),
         .fix = "Use 0 for the most probable token each time, 1 for the model's own distribution."});
  }
  if (options.top_k < 0) {
    throw base::UserError(
        {.what = fmt::format("top_k = {} is negative.", options.top_k), .fix = "Use 0 to consider all tokens."});
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    throw base::UserError({.what = fmt::format("top_p = {} is not in (0, 1].", options.top_p),
                           .why = "It is the probability that the considered tokens reach together.",
                           .fix = "Use 1 to consider all tokens, temperature 0 for the most probable one."});
  }
}

std::int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, std::uint64_t key,
                          std::int64_t position) {
  validate(options);
  PHAROS_CHECK(logits.dim() == 1 && logits.numel() > 0, "logits [vocabulary] wanted");
  const at::Tensor values = logits.detach().to(at::kCPU, at::kFloat).contiguous();
  const float* const data = values.const_data_ptr<float>();
  const std::int64_t count = values.numel(), best = find_best(data, count);
  if (options.temperature == 0 || options.top_k == 1) return best;
  std::vector<Candidate> candidates = weigh(data, count, options, data[best]);
  if (options.top_p < 1) keep_nucleus(candidates, options.top_p);
  const double target = draw_uniform(key, position) * total_weight(candidates);
  double gathered = 0;
  std::int64_t last = best;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0) continue;
    gathered += candidate.weight;
    last = candidate.token;
    if (target < gathered) break;
  }
  return last;
}

std::uint64_t sampling_key(std::uint64_t seed, std::int64_t sample) {
  return tensor::stream_key(seed, fmt::format("generate sample {}", sample));
}

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kStopToken:
      return "stop_token";
    case StopReason::kMaxTokens:
      return "max_tokens";
    case StopReason::kPositionLimit:
      return "position_limit";
    case StopReason::kCallback:
      return "callback";
  }
  throw base::InternalError("unknown stop reason");
}

std::optional<std::int64_t> position_limit(const config::ModelConfig& config) {
  if (config.position_embedding_type != config::PositionEmbedding::kLearnedAbsolute) return std::nullopt;
  return config.seq_length;
}

at::Tensor Generator::next_logits(const std::vector<std::int64_t>& tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const at::Device device = cache_.layers.front().keys.device();
  nn::ForwardContext context;
  context.positions =
      at::arange(cache_.length, cache_.length + count, at::TensorOptions().dtype(at::kLong).device(device));
  context.cache = &cache_;
  const at::Tensor input = at::empty({1, count}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), input.data_ptr<std::int64_t>());
  const at::Tensor hidden = model_.hidden_states(input.to(device), context);
  cache_.length += count;
  return model_.logits(hidden.select(1, count - 1)).select(0, 0).narrow(0, 0, *model_.config().vocab_size);
}

at::Tensor Generator::prompt_logits(const std::vector<std::int64_t>& prompt, std::int64_t capacity) {
  if (prompt_logits_.defined() && prompt == prompt_ && capacity <= capacity_) {
    cache_.length = static_cast<std::int64_t>(prompt.size());
    return prompt_logits_;
  }
  if (capacity > capacity_) {
    cache_ = model_.make_cache(1, capacity);
    capacity_ = capacity;
  }
  cache_.length = 0;
  prompt_logits_ = next_logits(prompt);
  prompt_ = prompt;
  return prompt_logits_;
}

Generation Generator::generate(const std::vector<std::int64_t>& prompt, const GenerateOptions& options,
                               const TokenCallback& callback) {
  const c10::InferenceMode guard;
  validate(options.sampling);
  check_prompt(prompt, model_.config());
  PHAROS_CHECK(options.max_tokens >= 0, "max_tokens is negative");
  const auto prompt_size = static_cast<std::int64_t>(prompt.size());
  const std::int64_t limit = position_limit(model_.config()).value_or(std::numeric_limits<std::int64_t>::max());
  const std::int64_t num_tokens = std::min(options.max_tokens, limit - prompt_size);
  Generation result;
  result.reason = num_tokens < options.max_tokens ? StopReason::kPositionLimit : StopReason::kMaxTokens;
  if (num_tokens == 0) return result;
  const std::uint64_t key = sampling_key(options.seed, options.sample);
  const std::int64_t start = base::monotonic_ns();
  at::Tensor logits = prompt_logits(prompt, prompt_size + num_tokens);
  const std::int64_t prefilled = base::monotonic_ns();
  result.prefill_ns = prefilled - start;
  while (true) {
    const std::int64_t position = prompt_size + static_cast<std::int64_t>(result.tokens.size());
    const std::int64_t token = sample_token(logits, options.sampling, key, position);
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) != options.stop_tokens.end()) {
      result.reason = StopReason::kStopToken;
      break;
    }
    result.tokens.push_back(token);
    if (callback && !callback(token)) {
      result.reason = StopReason::kCallback;
      break;
    }
    if (static_cast<std::int64_t>(result.tokens.size()) == num_tokens) break;
    logits = next_logits({token});
  }
  result.decode_ns = base::monotonic_ns() - prefilled;
  return result;
}

}  // namespace pharos::model

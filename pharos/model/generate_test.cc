// Generation with a cache against the whole sequence recomputed for every token, and sampling against softmax.
#include "pharos/model/generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "pharos/base/error.h"
#include "pharos/model/model_testing.h"
#include "pharos/tensor/random.h"

namespace pharos::model {
namespace {

using config::ModelConfig;
using testing::gpt2_like;
using testing::grouped_with_qk_norm;
using ::testing::HasSubstr;
using testing::llama_like;
using testing::Model;

ModelConfig with_window() {
  ModelConfig config = grouped_with_qk_norm();
  config.window_size = {{4, 0}};
  config.window_attn_skip_freq = std::int64_t{2};
  return config;
}

ModelConfig unfused() {
  ModelConfig config = grouped_with_qk_norm();
  config.attention_backend = config::AttentionBackend::kUnfused;
  return config;
}

/// Logits [tokens, vocabulary] of the whole sequence, no cache.
at::Tensor all_logits(const Transformer& model, const std::vector<std::int64_t>& tokens) {
  const at::NoGradGuard no_grad;
  nn::ForwardContext context;
  context.positions = at::arange(static_cast<std::int64_t>(tokens.size()), at::kLong);
  const at::Tensor input = at::tensor(at::ArrayRef<std::int64_t>(tokens), at::kLong).unsqueeze(0);
  return model.logits(model.hidden_states(input, context)).select(0, 0).narrow(1, 0, *model.config().vocab_size);
}

std::vector<std::int64_t> without_cache(const Transformer& model, std::vector<std::int64_t> tokens,
                                        const GenerateOptions& options) {
  const std::uint64_t key = sampling_key(options.seed, options.sample);
  std::vector<std::int64_t> generated;
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    generated.push_back(
        sample_token(all_logits(model, tokens)[-1], options.sampling, key, static_cast<std::int64_t>(tokens.size())));
    tokens.push_back(generated.back());
  }
  return generated;
}

GenerateOptions greedy(std::int64_t max_tokens) {
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = max_tokens;
  return options;
}

struct CacheCase {
  const char* name;
  ModelConfig (*make)();
};

struct CachedGeneration : ::testing::TestWithParam<CacheCase> {};

// A pass over one token with the cache == the last row of a pass over the whole sequence, for every token.
TEST_P(CachedGeneration, EqualsTheWholeSequenceTokenByToken) {
  const Model model(GetParam().make());
  Generator generator(model.transformer);
  GenerateOptions drawn;
  drawn.max_tokens = 16;
  for (const std::vector<std::int64_t>& prompt : {std::vector<std::int64_t>{7}, {3, 60, 0, 11, 11}}) {
    for (const GenerateOptions& options : {greedy(16), drawn}) {
      const Generation result = generator.generate(prompt, options);
      EXPECT_EQ(result.tokens, without_cache(model.transformer, prompt, options))
          << "temperature " << options.sampling.temperature;
      EXPECT_EQ(result.reason, StopReason::kMaxTokens);
    }
    const auto tokens = generator.generate(prompt, drawn).tokens;
    EXPECT_GT(std::set<std::int64_t>(tokens.begin(), tokens.end()).size(), 3U) << "always the same token shows nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CachedGeneration,
                         ::testing::Values(CacheCase{"LlamaLike", llama_like},
                                           CacheCase{"GroupedWithQkNorm", grouped_with_qk_norm},
                                           CacheCase{"Gpt2Like", gpt2_like}, CacheCase{"SlidingWindow", with_window},
                                           CacheCase{"Unfused", unfused}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Generator, TheSameSeedGivesTheSameTokensAndAnotherSeedOthers) {
  const Model model(llama_like());
  GenerateOptions options;
  options.max_tokens = 20;
  options.seed = 11;
  Generator generator(model.transformer);
  const auto first = generator.generate({1, 2, 3}, options).tokens;
  EXPECT_EQ(generator.generate({1, 2, 3}, options).tokens, first) << "from the cached prompt";
  EXPECT_EQ(Generator(model.transformer).generate({1, 2, 3}, options).tokens, first) << "from nothing";
  generator.generate({9, 9}, options);
  EXPECT_EQ(generator.generate({1, 2, 3}, options).tokens, first) << "after another prompt";
  options.sample = 1;
  const auto second_sample = generator.generate({1, 2, 3}, options).tokens;
  EXPECT_NE(second_sample, first);
  options.sample = 0;
  options.seed = 12;
  const auto other_seed = generator.generate({1, 2, 3}, options).tokens;
  EXPECT_NE(other_seed, first);
  EXPECT_NE(other_seed, second_sample);
}

TEST(Generator, ShorterRunsAreBeginningsOfLongerOnes) {
  const Model model(llama_like());
  GenerateOptions options;
  options.max_tokens = 4;
  Generator generator(model.transformer);
  const auto brief = generator.generate({1, 2}, options).tokens;
  options.max_tokens = 12;
  auto extended = generator.generate({1, 2}, options).tokens;
  ASSERT_EQ(extended.size(), 12U);
  extended.resize(4);
  EXPECT_EQ(extended, brief);
}

TEST(Generator, StopsAtAStopTokenWhichIsNotPartOfTheResult) {
  const Model model(llama_like());
  const auto free = Generator(model.transformer).generate({7}, greedy(16)).tokens;
  GenerateOptions options = greedy(16);
  options.stop_tokens = {free[5]};
  const Generation result = Generator(model.transformer).generate({7}, options);
  const auto first = std::find(free.begin(), free.end(), free[5]);
  EXPECT_EQ(result.tokens, std::vector<std::int64_t>(free.begin(), first));
  EXPECT_EQ(result.reason, StopReason::kStopToken);
}

TEST(Generator, CallsBackForEveryTokenAndStopsWhenTold) {
  const Model model(llama_like());
  std::vector<std::int64_t> seen;
  const Generation result = Generator(model.transformer).generate({7}, greedy(16), [&](std::int64_t token) {
    seen.push_back(token);
    return seen.size() < 3;
  });
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_EQ(result.tokens, seen);
  EXPECT_EQ(result.reason, StopReason::kCallback);
}

TEST(Generator, LearnedPositionsLimitTheLengthAndRotaryOnesDoNot) {
  const Model learned(gpt2_like()), rotary(llama_like());
  EXPECT_EQ(position_limit(learned.transformer.config()), 24);
  EXPECT_EQ(position_limit(rotary.transformer.config()), std::nullopt);
  const std::vector<std::int64_t> prompt(20, 1), too_long(25, 1), full(24, 1);
  const Generation limited = Generator(learned.transformer).generate(prompt, greedy(10));
  EXPECT_EQ(limited.tokens, without_cache(learned.transformer, prompt, greedy(4)));
  EXPECT_EQ(limited.reason, StopReason::kPositionLimit);
  EXPECT_EQ(Generator(learned.transformer).generate(full, greedy(10)).reason, StopReason::kPositionLimit);
  EXPECT_THROW(Generator(learned.transformer).generate(too_long, greedy(10)), base::UserError);
  const Generation beyond = Generator(rotary.transformer).generate(too_long, greedy(10));
  EXPECT_EQ(beyond.tokens, without_cache(rotary.transformer, too_long, greedy(10)));
}

TEST(Generator, ATokenOutsideTheVocabularyIsAUserError) {
  const Model model(gpt2_like());  // 61 tokens in a table of 128 rows
  for (const std::int64_t token : {-1, 61, 1000}) {
    try {
      Generator(model.transformer).generate({token}, greedy(1));
      ADD_FAILURE() << token << " was accepted";
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("from 0 to 60"));
    }
  }
}

TEST(Generator, NeverDrawsPaddingOfTheVocabulary) {
  const Model model(gpt2_like());
  GenerateOptions options;
  options.sampling.temperature = 100;  // nearly uniform over what may be drawn
  options.max_tokens = 23;
  Generator generator(model.transformer);
  for (options.sample = 0; options.sample < 40; ++options.sample) {
    for (const std::int64_t token : generator.generate({5}, options).tokens) ASSERT_LT(token, 61);
  }
}

/// Frequencies of `draws` draws.
std::map<std::int64_t, double> frequencies(const at::Tensor& logits, const SamplingOptions& options, int draws) {
  std::map<std::int64_t, double> counts;
  const std::uint64_t key = tensor::stream_key(3, "distribution");
  for (int i = 0; i < draws; ++i) counts[sample_token(logits, options, key, i)] += 1.0 / draws;
  return counts;
}

const std::vector<double> kProbabilities{0.02, 0.4, 0.08, 0.3, 0.0, 0.15, 0.05};

struct SamplingCase {
  const char* name;
  SamplingOptions options;
  std::vector<std::int64_t> kept;  ///< tokens that may be drawn
};

// frequency -> p_i^(1/T) / sum over kept of p_j^(1/T); |Δ| within 4.5 standard deviations of a binomial.
TEST(SampleToken, FrequenciesAreThoseOfTheFilteredSoftmax) {
  const at::Tensor logits = at::tensor(at::ArrayRef<double>(kProbabilities), at::kDouble).log() + 3;
  const SamplingCase cases[] = {
      {"plain", {1, 0, 1}, {0, 1, 2, 3, 5, 6}},
      {"cold", {0.5, 0, 1}, {0, 1, 2, 3, 5, 6}},
      {"hot", {2, 0, 1}, {0, 1, 2, 3, 5, 6}},
      {"top 3", {1, 3, 1}, {1, 3, 5}},
      {"k above the vocabulary", {1, 100, 1}, {0, 1, 2, 3, 5, 6}},
      {"top 0.8", {1, 0, 0.8}, {1, 3, 5}},  // 0.4 + 0.3 < 0.8 <= 0.4 + 0.3 + 0.15
      {"top 0.3", {1, 0, 0.3}, {1}},        // the first always stays
      {"tiny top p", {1, 0, 1e-9}, {1}},
      {"top 3, then top 0.8", {1, 3, 0.8}, {1, 3}},      // 0.4 / 0.85 < 0.8 <= (0.4 + 0.3) / 0.85
      {"hot, then top 0.8", {2, 0, 0.8}, {1, 3, 5, 2}},  // the nucleus is that of the heated distribution
  };
  constexpr int kDraws = 20000;
  for (const SamplingCase& c : cases) {
    SCOPED_TRACE(c.name);
    const auto measured = frequencies(logits, c.options, kDraws);
    double total = 0;
    for (const std::int64_t token : c.kept) total += std::pow(kProbabilities[token], 1 / c.options.temperature);
    double covered = 0;
    for (const std::int64_t token : c.kept) {
      const double expected = std::pow(kProbabilities[token], 1 / c.options.temperature) / total;
      const double deviation = std::sqrt(expected * (1 - expected) / kDraws);
      const double frequency = measured.count(token) != 0 ? measured.at(token) : 0;
      EXPECT_NEAR(frequency, expected, 4.5 * deviation + 1e-12) << "token " << token;
      covered += frequency;
    }
    EXPECT_NEAR(covered, 1, 1e-9) << "a token that is filtered out was drawn";
  }
}

TEST(SampleToken, TemperatureZeroTakesTheFirstOfTheMostProbable) {
  const at::Tensor logits = at::tensor({1.0, 5.0, 5.0, -2.0});
  for (int position = 0; position < 20; ++position) EXPECT_EQ(sample_token(logits, {.temperature = 0}, 1, position), 1);
}

TEST(SampleToken, TokensThatTieWithTheLastOfTopKStay) {
  const auto measured = frequencies(at::tensor({1.0, 2.0, 1.0, 0.0}), {1, 2, 1}, 2000);
  EXPECT_EQ(measured.size(), 3U);
  EXPECT_EQ(measured.count(3), 0U);
}

TEST(SampleToken, ReadsHalfPrecision) {
  EXPECT_EQ(sample_token(at::tensor({1.0, 2.0, 9.0}).to(at::kBFloat16), {.temperature = 0}, 0, 0), 2);
}

TEST(SampleToken, RefusesOptionsOutOfRange) {
  const at::Tensor logits = at::tensor({1.0, 2.0});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<SamplingOptions, const char*> cases[] = {
      {{1, 0, 0}, "top_p"},  {{1, 0, 1.5}, "top_p"},      {{1, 0, nan}, "top_p"},
      {{1, -1, 1}, "top_k"}, {{-1, 0, 1}, "temperature"}, {{nan, 0, 1}, "temperature"},
  };
  for (const auto& [options, name] : cases) {
    try {
      sample_token(logits, options, 0, 0);
      ADD_FAILURE() << name << " was accepted";
    } catch (const base::UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

TEST(SampleToken, NoFiniteLargestLogitIsATrainingError) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const at::Tensor& logits :
       {at::tensor({1.0, nan, 2.0}), at::tensor({nan, nan}), at::tensor({1.0, inf}), at::tensor({-inf, -inf})}) {
    EXPECT_THROW(sample_token(logits, {}, 0, 0), base::TrainingError);
    EXPECT_THROW(sample_token(logits, {.temperature = 0}, 0, 0), base::TrainingError);
  }
  EXPECT_EQ(sample_token(at::tensor({-inf, 1.0, -inf}), {}, 0, 0), 1);
}

}  // namespace
}  // namespace pharos::model

// Samplers against Megatron's, and microbatches that depend on nothing but the samples consumed.
#include "pharos/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "pharos/data/datasets.h"
#include "pharos/data/test_support.h"
#include "pharos/data/text/ngram.h"
#include "pharos/data/text/tokenizer.h"

namespace pharos::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

SamplerOptions sampler_options(const nlohmann::json& c, std::int64_t rank) {
  return {.kind = parse_sampler_kind(c["type"]),
          .total_samples = c["total_samples"],
          .micro_batch_size = c["micro_batch_size"],
          .data_parallel_rank = rank,
          .data_parallel_size = c["data_parallel_size"],
          .drop_last = c.value("drop_last", true),
          .data_sharding = c.value("data_sharding", true)};
}

TEST(Sampler, EqualsMegatrons) {
  const nlohmann::json cases = base::read_json_file(kFixtures / "samplers.json")["cases"];
  ASSERT_EQ(cases.size(), 4U);
  for (const nlohmann::json& c : cases) {
    const std::int64_t consumed = c["consumed_samples"];
    const std::int64_t step = c["micro_batch_size"].get<std::int64_t>() * c["data_parallel_size"].get<std::int64_t>();
    for (std::size_t rank = 0; rank < c["ranks"].size(); ++rank) {
      const Sampler sampler(sampler_options(c, static_cast<std::int64_t>(rank)));
      const auto expected = c["ranks"][rank].get<std::vector<std::vector<std::int64_t>>>();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const auto number = static_cast<std::int64_t>(i);
        EXPECT_EQ(sampler.microbatch(consumed, number), expected[i]) << c["name"] << " rank " << rank;
        EXPECT_EQ(sampler.microbatch(consumed + number * step, 0), expected[i])
            << c["name"] << ": resumed there, the same microbatch";
      }
      if (c["type"] == "single") {
        EXPECT_FALSE(sampler.microbatch(consumed, static_cast<std::int64_t>(expected.size())));
      }
    }
  }
}

TEST(Sampler, CyclicReadsEverySampleOnceAnEpoch) {
  for (const bool sharding : {false, true}) {
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        const Sampler sampler({.kind = SamplerKind::kCyclic,
                               .total_samples = 50,
                               .micro_batch_size = 3,
                               .data_parallel_rank = rank,
                               .data_parallel_size = 2,
                               .data_sharding = sharding});
        for (std::int64_t i = 0; i < 8; ++i) {
          const auto samples = sampler.microbatch(48 * epoch, i);
          ASSERT_TRUE(samples.has_value());
          for (const std::int64_t sample : *samples) EXPECT_TRUE(seen.insert(sample).second) << sample;
        }
      }
      EXPECT_EQ(seen.size(), 48U) << "50 samples, 6 at a time";
    }
  }
}

TEST(Sampler, RefusesWhatCannotBeShared) {
  EXPECT_THAT(user_error([] { parse_sampler_kind("batch"); }), HasSubstr("dataloader_type = batch"));
  EXPECT_THAT(user_error([] { parse_sampler_kind("x"); }), HasSubstr("single"));
  EXPECT_THAT(user_error([] { Sampler({.total_samples = 0}); }), HasSubstr("0 samples"));
  EXPECT_THAT(user_error([] { Sampler({.total_samples = 5, .data_parallel_rank = 2, .data_parallel_size = 2}); }),
              HasSubstr("rank 2 of 2"));
  EXPECT_THAT(user_error([] { Sampler({.kind = SamplerKind::kCyclic, .total_samples = 5, .micro_batch_size = 6}); }),
              HasSubstr("fewer than one microbatch"));
  const Sampler cyclic({.kind = SamplerKind::kCyclic, .total_samples = 50, .micro_batch_size = 3});
  EXPECT_THAT(user_error([&] { cyclic.microbatch(4, 0); }), HasSubstr("do not end a microbatch"));
}

std::unique_ptr<SampleDataset> small_dataset() {
  GptDatasetOptions options;
  options.set_tokenizer(ByteTokenizer());
  options.seq_length = 32;
  options.use_cache = false;
  return std::move(
      build_datasets({.blend = {(kFixtures / "licences").string()}, .split = "1"}, {100, 0, 0}, options)[0]);
}

TEST(MicrobatchSource, GivesRowsOfTheSamplersSamples) {
  const auto dataset = small_dataset();
  for (const SamplerKind kind : {SamplerKind::kSingle, SamplerKind::kCyclic}) {
    const SamplerOptions options{.kind = kind, .micro_batch_size = 4, .data_parallel_rank = 1, .data_parallel_size = 2};
    const MicrobatchSource source(*dataset, options);
    Microbatch reused;
    for (const std::int64_t microbatch : {5, 0, 2}) {
      source.read(16, microbatch, reused);
      ASSERT_EQ(reused.rows, 4);
      ASSERT_EQ(reused.tokens.size(), 4U * 32U);
      for (std::int64_t row = 0; row < 4; ++row) {
        const Sample sample = dataset->get(reused.sample_indices[static_cast<std::size_t>(row)]);
        const auto at = static_cast<std::size_t>(row) * 32;
        for (std::size_t i = 0; i < 32; ++i) {
          EXPECT_EQ(reused.tokens[at + i], sample.tokens[i]);
          EXPECT_EQ(reused.labels[at + i], sample.labels[i]);
          EXPECT_EQ(reused.position_ids[at + i], sample.position_ids[i]);
          EXPECT_EQ(reused.segment_ids[at + i], sample.segment_ids[i]);
          EXPECT_EQ(reused.loss_mask[at + i], sample.loss_mask[i]);
        }
      }
      const MicrobatchSource resumed(*dataset, options);
      EXPECT_EQ(resumed.get(16 + 8 * microbatch, 0).tokens, reused.tokens) << "a fresh source after a resume";
    }
  }
}

TEST(MicrobatchSource, SaysWhenSamplesRunOut) {
  const auto dataset = small_dataset();
  const MicrobatchSource source(*dataset, {.micro_batch_size = 4});
  EXPECT_THAT(user_error([&] { source.get(dataset->length(), 0); }),
              AllOf(HasSubstr("no samples left to consume"), HasSubstr("cyclic")));
  EXPECT_THAT(user_error([&] { source.get(dataset->length() - 3, 0); }), HasSubstr("no samples left to consume"));
}

/// A text in memory.
struct TextSource : SequenceSource {
  std::vector<std::int64_t> tokens;
  explicit TextSource(const std::string& text) : tokens(ByteTokenizer().Tokenizer::encode(text)) {}
  std::int64_t num_sequences() const override { return 1; }
  std::int64_t length(std::int64_t) const override { return static_cast<std::int64_t>(tokens.size()); }
  void read(std::int64_t, std::int64_t first, std::int64_t count, std::int64_t* out) const override {
    std::copy_n(tokens.begin() + first, count, out);
  }
  std::string where(std::int64_t, std::int64_t token) const override { return "token " + std::to_string(token); }
};

TEST(TrigramModel, GivesProbabilities) {
  TrigramModel model;
  TextSource text("the cat sat on the mat, the rat ate the oats");
  model.train(text, {0, 1});
  const std::pair<int, int> contexts[] = {{256, 256}, {'t', 'h'}, {'h', 'e'}, {'x', 'e'}, {'q', 'q'}};
  for (const auto& [before, previous] : contexts) {
    double total = 0;
    for (int symbol = 0; symbol < 257; ++symbol) {
      const double log_probability = model.log_probability(before, previous, symbol);
      EXPECT_TRUE(std::isfinite(log_probability)) << symbol;
      total += std::exp(log_probability);
    }
    EXPECT_NEAR(total, 1.0, 1e-12) << before << " " << previous;
  }
  EXPECT_EQ(model.score(text, {0, 1}).num_tokens, 44);
  text.tokens[3] = 257;
  EXPECT_THAT(user_error([&] { model.score(text, {0, 1}); }), AllOf(HasSubstr("257"), HasSubstr("token 3")));
}

// Five tokens hold nothing out, so every weight is 1/2. Text "aabab": N(a) = 3, N(b) = 2, N(ab) = 2, N(a, any) = 3,
// N(ab, a) = 1, N(ab, any) = 1.
TEST(TrigramModel, FollowsItsEquation) {
  TrigramModel model;
  const TextSource text("aabab");
  model.train(text, {0, 1});
  const double unigram_b = 0.5 * 2 / 5 + 0.5 / 257;
  const double bigram_ab = 0.5 * 2 / 3 + 0.5 * unigram_b;
  EXPECT_NEAR(model.log_probability('x', 'x', 'b'), std::log(unigram_b), 1e-12) << "unseen contexts add nothing";
  EXPECT_NEAR(model.log_probability('x', 'a', 'b'), std::log(bigram_ab), 1e-12);
  EXPECT_NEAR(model.log_probability('a', 'b', 'b'), std::log(0.5 * 0 + 0.5 * (0.5 * 0 + 0.5 * unigram_b)), 1e-12);
}

// EM finds the weights: no single weight of the trigram in its own place does better on the text they were fitted on.
TEST(TrigramModel, FitsItsWeightsOnHeldOutText) {
  std::string repeated;
  for (int i = 0; i < 3000; ++i) repeated += "abcabd";
  TrigramModel sure;
  sure.train(TextSource(repeated), {0, 1});
  // 3000 contexts "ab" in 10 parts: bucket of about 5400 is 12. The trigram knows all there is to know, c or d.
  EXPECT_NEAR(sure.log_probability('a', 'b', 'c'), std::log(0.5), 2e-3);
  EXPECT_NEAR(sure.log_probability('b', 'c', 'a'), 0.0, 2e-3);
  std::string noise;
  std::uint32_t state = 1;
  for (int i = 0; i < 20'000; ++i)
    noise += static_cast<char>('a' + ((state = state * 1664525 + 1013904223) >> 24) % 26);
  TrigramModel doubtful;
  const TextSource text(noise);
  doubtful.train(text, {0, 1});
  // Independent letters: contexts say nothing, so the model must fall back to single letters, log 26 = 3.258.
  EXPECT_LT(doubtful.weight(3, 4), 0.2);
  EXPECT_NEAR(doubtful.score(text, {0, 1}).nats_per_token(), std::log(26.0), 0.1);
}

}  // namespace
}  // namespace pharos::data

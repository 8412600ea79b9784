// GPT datasets against Megatron Core: every index array and every recorded sample of the fixtures.
#include "pharos/data/gpt_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/clock.h"
#include "pharos/data/datasets.h"
#include "pharos/data/indexed/indexed_dataset.h"
#include "pharos/data/indexed/indexed_dataset_writer.h"
#include "pharos/data/mock_sequences.h"
#include "pharos/data/test_support.h"

namespace pharos::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kSplitNames[] = {"train", "valid", "test"};

std::vector<std::int64_t> values(const IntegerArray& array) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < array.size(); ++i) result.push_back(array[i]);
  return result;
}

void expect_index(const GptDataset& dataset, const Oracle& oracle, const std::string& prefix) {
  EXPECT_EQ(values(dataset.index().document_index), oracle[prefix + "document_index"]) << prefix;
  EXPECT_EQ(values(dataset.index().sample_index), oracle[prefix + "sample_index"]) << prefix;
  EXPECT_EQ(values(dataset.index().shuffle_index), oracle[prefix + "shuffle_index"]) << prefix;
}

/// Row `row` of a [rows, size] tensor.
std::vector<std::int64_t> row_of(const std::vector<std::int64_t>& tensor, std::size_t row, std::size_t size) {
  const auto first = tensor.begin() + static_cast<std::ptrdiff_t>(row * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

/// attention_mask: 1 where token t may not look at token s.
std::vector<std::int64_t> attention_mask(const std::vector<std::int64_t>& segments) {
  std::vector<std::int64_t> mask;
  for (std::size_t t = 0; t < segments.size(); ++t) {
    for (std::size_t s = 0; s < segments.size(); ++s) mask.push_back(s > t || segments[s] != segments[t] ? 1 : 0);
  }
  return mask;
}

void expect_samples(const SampleDataset& dataset, const Oracle& oracle, const std::string& prefix) {
  const auto size = static_cast<std::size_t>(dataset.seq_length());
  const auto picked = oracle[prefix + "picked"];
  const auto tokens = oracle[prefix + "tokens"];
  const auto labels = oracle[prefix + "labels"];
  const auto optional = [&](const char* name) {
    return oracle.has(prefix + name) ? oracle[prefix + name] : std::vector<std::int64_t>();
  };
  const auto loss_mask = optional("loss_mask");
  const auto position_ids = optional("position_ids");
  const auto masks = optional("attention_mask");
  for (std::size_t row = 0; row < picked.size(); ++row) {
    const Sample sample = dataset.get(picked[row]);
    ASSERT_EQ(sample.tokens, row_of(tokens, row, size)) << prefix << row;
    ASSERT_EQ(sample.labels, row_of(labels, row, size)) << prefix << row;
    const std::vector<std::int64_t> mask(sample.loss_mask.begin(), sample.loss_mask.end());
    ASSERT_EQ(mask, loss_mask.empty() ? std::vector<std::int64_t>(size, 1) : row_of(loss_mask, row, size))
        << prefix << row;
    if (!position_ids.empty()) {
      ASSERT_EQ(sample.position_ids, row_of(position_ids, row, size)) << prefix << row;
    }
    if (!masks.empty() && row < 2) {
      ASSERT_EQ(attention_mask(sample.segment_ids), row_of(masks, row, size * size)) << prefix << row;
    }
  }
}

GptDatasetOptions byte_options(std::int64_t seq_length) {
  GptDatasetOptions options;
  options.set_tokenizer(ByteTokenizer());
  options.seq_length = seq_length;
  options.use_cache = false;
  options.warn = [](const std::string& text) { ADD_FAILURE() << "warning: " << text; };
  return options;
}

GptDatasetOptions case_options(const nlohmann::json& c) {
  GptDatasetOptions options = byte_options(c["seq_length"]);
  options.random_seed = c["seed"];
  const nlohmann::json& flags = c["options"];
  options.reset_position_ids = flags["reset_position_ids"];
  options.reset_attention_mask = flags["reset_attention_mask"];
  options.eod_mask_loss = flags["eod_mask_loss"];
  options.drop_last_partial_validation_sequence = flags.value("drop_last_partial_validation_sequence", true);
  options.add_extra_token_to_sequence = flags.value("add_extra_token_to_sequence", true);
  return options;
}

DataSources case_sources(const nlohmann::json& c) {
  const auto path = [](const nlohmann::json& name) { return (kFixtures / name.get<std::string>()).string(); };
  DataSources sources;
  if (c.contains("blend")) {
    for (std::size_t i = 0; i < c["blend"].size(); ++i) {
      if (c.contains("weights")) sources.blend.push_back(c["weights"][i].dump());
      sources.blend.push_back(path(c["blend"][i]));
    }
    sources.split = c["split"];
    return sources;
  }
  for (const nlohmann::json& names : c["blend_per_split"]) {
    sources.blend_per_split.emplace_back();
    if (!names.is_null()) {
      for (const nlohmann::json& name : names) sources.blend_per_split.back().push_back(path(name));
    }
  }
  return sources;
}

void expect_description(const GptDataset& dataset, const nlohmann::json& result) {
  EXPECT_EQ(dataset.length(), result["length"]);
  EXPECT_EQ(dataset.plan().tokens_per_epoch, result["tokens_per_epoch"]);
  EXPECT_EQ(dataset.plan().num_epochs, result["epochs"]);
  EXPECT_EQ(dataset.part().sequences.first, result["sequences"][0]);
  EXPECT_EQ(dataset.part().sequences.second, result["sequences"][1]);
  if (!result["num_samples"].is_null()) {
    EXPECT_EQ(dataset.part().num_samples, result["num_samples"].get<std::int64_t>());
  }
}

/// Builds every split of `c` and compares it with the oracle.
void expect_case(const nlohmann::json& c, const GptDatasetOptions& options, const Oracle& oracle) {
  SampleCounts counts;
  for (std::size_t i = 0; i < 3; ++i)
    counts[i] = c["sizes"][i].is_null() ? std::nullopt : std::optional(c["sizes"][i].get<std::int64_t>());
  const DatasetSet set = build_datasets(case_sources(c), counts, options);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string prefix = c["name"].get<std::string>() + "/" + kSplitNames[i] + "/";
    const nlohmann::json& result = c["result"][kSplitNames[i]];
    ASSERT_EQ(set[i] == nullptr, result.is_null()) << prefix;
    if (!set[i]) continue;
    EXPECT_EQ(set[i]->length(), result["length"]) << prefix;
    if (const auto* blend = dynamic_cast<const BlendedDataset*>(set[i].get())) {
      EXPECT_EQ(values(blend->index().dataset_index), oracle[prefix + "dataset_index"]) << prefix;
      EXPECT_EQ(values(blend->index().dataset_sample_index), oracle[prefix + "dataset_sample_index"]) << prefix;
      for (std::size_t d = 0; d < blend->datasets().size(); ++d) {
        expect_index(*blend->datasets()[d], oracle, prefix + std::to_string(d) + "/");
        expect_description(*blend->datasets()[d], result["datasets"][d]);
      }
    } else {
      const auto& single = dynamic_cast<const GptDataset&>(*set[i]);
      expect_index(single, oracle, prefix);
      expect_description(single, result);
    }
    expect_samples(*set[i], oracle, prefix);
  }
}

TEST(GptDataset, EqualsMegatronInEveryCase) {
  const Oracle oracle(kFixtures / "oracle.safetensors");
  const nlohmann::json plan = base::read_json_file(kFixtures / "cases.json");
  ASSERT_EQ(plan["cases"].size(), 11U);
  const TemporaryFolder folder;
  for (const nlohmann::json& c : plan["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    GptDatasetOptions options = case_options(c);
    expect_case(c, options, oracle);
    options.use_cache = true;
    options.path_to_cache = folder / c["name"].get<std::string>();
    expect_case(c, options, oracle);  // fills the cache
    expect_case(c, options, oracle);  // reads it
  }
}

/// One document a sequence, of the given lengths; token values count up modulo 256.
std::string write_dataset(const TemporaryFolder& folder, const std::vector<int>& lengths) {
  IndexedDatasetWriter writer(folder / "data", TokenType::kUint16);
  std::int64_t token = 0;
  for (const int length : lengths) {
    std::vector<std::int64_t> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(token++ % 256);
    writer.add_tokens(tokens);
    writer.end_document();
  }
  writer.finish();
  return folder / "data";
}

TEST(GptDataset, NamesCachesAsMegatron) {
  const TemporaryFolder folder;
  const auto source = std::make_shared<IndexedDataset>(write_dataset(folder, {50, 60, 70}));
  GptDatasetOptions options = byte_options(16);
  const auto dataset = [&](const char* path, std::optional<std::int64_t> num_samples,
                           std::optional<SplitShares> shares) {
    return GptDataset({.source = source,
                       .path = path,
                       .sequences = {0, 2},
                       .split = Split::kTrain,
                       .shares = std::move(shares),
                       .num_samples = num_samples},
                      options)
        .identifiers()
        .dump(4, ' ', true);
  };
  // json.dumps(..., indent=4) of the same dictionary in Python
  EXPECT_EQ(dataset("/d/caf\xc3\xa9", 20, parse_split("80,15,5")), R"({
    "class": "GPTDataset",
    "dataset_path": "/d/caf\u00e9",
    "num_samples": 20,
    "index_split": "train",
    "random_seed": 1234,
    "sequence_length": 16,
    "split": "80,15,5",
    "split_matrix": [
        [
            0,
            0.8
        ],
        [
            0.8,
            0.9500000000000001
        ],
        [
            0.9500000000000001,
            1.0
        ]
    ],
    "tokenizer": {
        "class": "ByteTokenizer"
    }
})");
  EXPECT_THAT(
      dataset("/d", std::nullopt, parse_split("1,1")),
      AllOf(HasSubstr("\"num_samples\": null"), HasSubstr("            1.0\n        ],\n        null\n    ],")));
  EXPECT_THAT(dataset("/d", 1, std::nullopt), HasSubstr("\"split\": null,\n    \"split_matrix\": null,"));
}

TEST(GptDataset, RefusesPartsThatGiveNoSample) {
  const TemporaryFolder folder;
  const std::string prefix = write_dataset(folder, std::vector<int>(400, 3));
  const auto build = [&](std::int64_t seq_length, const SampleCounts& counts, const char* split) {
    return build_datasets({.blend = {prefix}, .split = split}, counts, byte_options(seq_length));
  };
  EXPECT_THAT(user_error([&] {
                build(8, {10, 10, 0}, "999,1,0");
              }),
              AllOf(HasSubstr("valid part"), HasSubstr("no sequence"), HasSubstr("400 sequences")));
  EXPECT_NO_THROW(build(8, {10, 0, 0}, "999,1,0")) << "nothing is asked of it";
  EXPECT_THAT(user_error([&] {
                build(1200, {10, 0, 0}, "1");
              }),
              AllOf(HasSubstr("shorter than one sample"), HasSubstr("1200 tokens"), HasSubstr("needs 1201")));
  EXPECT_THAT(user_error([&] {
                build(100, {1, std::nullopt, 0}, "95,5,0");
              }),
              AllOf(HasSubstr("60 tokens"), HasSubstr("needs 101")));
  EXPECT_EQ(build(100, {1, 5, 0}, "95,5,0")[1]->length(), 5) << "a small part is repeated";
  EXPECT_THAT(user_error([&] { build(0, {1, 0, 0}, "1"); }), HasSubstr("dataset.seq_length"));
}

TEST(GptDataset, RefusesATokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "data", TokenType::kUint16);
  std::vector<std::int64_t> tokens(3000, 1);
  tokens[2500] = 300;  // past the look at the start of the sequence
  writer.add_tokens(tokens);
  writer.end_document();
  writer.finish();
  const DatasetSet set =
      build_datasets({.blend = {folder / "data"}, .split = "1"}, {std::nullopt, 0, 0}, byte_options(100));
  int refused = 0;
  for (std::int64_t i = 0; i < set[0]->length(); ++i) {
    try {
      set[0]->get(i);
    } catch (const base::UserError& error) {
      ++refused;
      EXPECT_THAT(error.what(), AllOf(HasSubstr("Token 300"), HasSubstr("byte 5000"), HasSubstr("257 ids")));
    }
  }
  EXPECT_GE(refused, 1);
  GptDatasetOptions small = byte_options(100);
  small.vocab_size = 1;
  EXPECT_THAT(user_error([&] {
                build_datasets({.blend = {folder / "data"}, .split = "1"}, {std::nullopt, 0, 0}, small);
              }),
              AllOf(HasSubstr("Token 1"), HasSubstr("byte 0")));
}

TEST(GptDataset, RefusesSeedsNumpyRefuses) {
  const TemporaryFolder folder;
  const std::string prefix = write_dataset(folder, {100});
  for (const std::int64_t seed : {std::int64_t{-1}, std::int64_t{1} << 32}) {
    GptDatasetOptions options = byte_options(8);
    options.random_seed = seed;
    EXPECT_THAT(user_error([&] {
                  build_datasets({.blend = {prefix}, .split = "1"}, {1, 0, 0}, options);
                }),
                HasSubstr("random_seed"));
  }
}

TEST(Mock, CountsUpAndEndsDocuments) {
  const MockSequences mock(257, 256);
  EXPECT_EQ(mock.num_sequences(), 100'000);
  EXPECT_EQ(mock.length(5), 168);
  std::vector<std::int64_t> tokens(168);
  mock.read(5, 0, 168, tokens.data());
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokens[166], 167);
  EXPECT_EQ(tokens[167], 256);
  std::vector<std::int64_t> wrapped(3);
  mock.read(0, 255, 3, wrapped.data());
  EXPECT_THAT(wrapped, testing::ElementsAre(256, 0, 1)) << "modulo the vocabulary";
  const DatasetSet set = build_datasets({}, {40, 20, 10}, byte_options(32));
  EXPECT_GT(set[0]->length(), 40);
  EXPECT_EQ(dynamic_cast<const GptDataset&>(*set[1]).part().sequences,
            (std::pair<std::int64_t, std::int64_t>(33333, 66667)));
}

TEST(Blends, ParseWeights) {
  EXPECT_FALSE(parse_blend({"a"}).weights);
  EXPECT_FALSE(parse_blend({"a", "b"}).weights);
  EXPECT_FALSE(parse_blend({"1", "a", "2"}).weights);
  const Blend blend = parse_blend({"0.3", "a", "7e-1", "b"});
  EXPECT_EQ(blend.prefixes, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*blend.weights, (std::vector<double>{0.3, 0.7}));
  EXPECT_THAT(user_error([] { parse_blend({"-1", "a"}); }), HasSubstr("weight"));
  EXPECT_THAT(user_error([] { parse_blend({"0", "a"}); }), HasSubstr("all zero"));
}

TEST(Blends, RefuseContradictions) {
  const TemporaryFolder folder;
  const std::string prefix = write_dataset(folder, {400, 400});
  const GptDatasetOptions options = byte_options(8);
  EXPECT_THAT(user_error([&] {
                build_datasets({.blend = {prefix}, .blend_per_split = {{}, {}, {}}}, {1, 1, 1}, options);
              }),
              HasSubstr("both set"));
  EXPECT_THAT(user_error([&] {
                build_datasets({.blend_per_split = {{prefix}}}, {1, 1, 1}, options);
              }),
              HasSubstr("blend_per_split has 1"));
  EXPECT_THAT(user_error([&] {
                build_datasets({.blend = {"1", prefix}, .split = "1"}, {std::nullopt, 0, 0}, options);
              }),
              HasSubstr("number of samples"));
  const DatasetSet set = build_datasets({.blend = {"0", prefix, "1", prefix}, .split = "1"}, {50, 0, 0}, options);
  EXPECT_EQ(set[0]->length(), 50) << "a dataset of weight 0 gives nothing";
}

TEST(Speed, AnIndexOfACorpusOfBytesIsBuiltInMilliseconds) {
  const TemporaryFolder folder;
  const std::string prefix = write_dataset(folder, std::vector<int>(31'102, 142));
  GptDatasetOptions options = byte_options(256);
  options.use_cache = true;
  const auto best_ns = [&] {
    std::int64_t best = INT64_MAX;
    for (int i = 0; i < 5; ++i) {
      const std::int64_t start_ns = base::monotonic_ns();
      build_datasets({.blend = {prefix}, .split = "90,5,5"}, {16'000, 800, 0}, options);
      best = std::min(best, base::monotonic_ns() - start_ns);
    }
    return best;
  };
  options.use_cache = false;
  const std::int64_t built_ns = best_ns();
  options.use_cache = true;
  build_datasets({.blend = {prefix}, .split = "90,5,5"}, {16'000, 800, 0}, options);
  const std::int64_t loaded_ns = best_ns();
  RecordProperty("built_us", std::to_string(built_ns / 1000));
  RecordProperty("loaded_us", std::to_string(loaded_ns / 1000));
  std::cout << "built in " << built_ns / 1000 << " us, loaded in " << loaded_ns / 1000 << " us\n";
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(built_ns, 20'000'000);
  EXPECT_LT(loaded_ns, 20'000'000);
#endif
}

}  // namespace
}  // namespace pharos::data

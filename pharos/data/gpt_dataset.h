// Samples of seq_length tokens cut from shuffled sequences: Megatron Core's GPTDataset, bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "pharos/data/index/gpt_index.h"
#include "pharos/data/index/index_cache.h"
#include "pharos/data/index/split.h"
#include "pharos/data/sample_dataset.h"
#include "pharos/data/sequence_source.h"
#include "pharos/data/text/tokenizer.h"

namespace pharos::data {

struct GptDatasetOptions {
  std::int64_t seq_length = 0;      ///< tokens of a sample
  std::int64_t random_seed = 1234;  ///< 0 to 2^32 - 1
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  bool drop_last_partial_validation_sequence = true;
  bool add_extra_token_to_sequence = true;
  double mid_level_dataset_surplus = 0.005;

  std::int64_t vocab_size = 0;          ///< ids of the data must be below; 0: not checked
  std::int64_t end_of_document = -1;    ///< id; -1: none
  std::int64_t pad = -1;                ///< id whose label carries no loss; -1: none
  std::string tokenizer_json = "null";  ///< Tokenizer::identifiers_json()

  bool use_cache = true;
  std::optional<std::string> path_to_cache =
      std::nullopt;                ///< unset: PREFIX/cache/GPTDataset_indices; blends are not cached then
  WarningFunction warn = nullptr;  ///< unset: standard error

  /// Takes vocabulary, end of document, pad (unless it is the end of document) and identity from a tokenizer.
  void set_tokenizer(const Tokenizer& tokenizer);
};

/// The part [first, second) of a source that one split owns.
struct GptDatasetPart {
  std::shared_ptr<const SequenceSource> source;  ///< shared by the three splits
  std::string path;  ///< prefix as the user wrote it; empty for mock data, which has no cache
  std::pair<std::int64_t, std::int64_t> sequences;
  Split split = Split::kTrain;
  std::optional<SplitShares> shares = std::nullopt;        ///< unset for blend_per_split
  std::optional<std::int64_t> num_samples = std::nullopt;  ///< unset: one epoch
};

class GptDataset : public SampleDataset {
 public:
  /// Builds the index or loads it from its cache. UserError if the part has no sequence, or if its tokens (times the
  /// epochs) do not make one sample, or if a token of a bounded look at the data is outside the vocabulary.
  GptDataset(GptDatasetPart part, const GptDatasetOptions& options);

  std::int64_t length() const override { return plan_.num_samples; }
  std::int64_t seq_length() const override { return options_.seq_length; }
  void read(std::int64_t index, const SampleRow& row) const override;

  const EpochPlan& plan() const { return plan_; }
  const GptIndex& index() const { return index_; }
  const GptDatasetPart& part() const { return part_; }
  bool loaded_from_cache() const { return loaded_from_cache_; }
  /// What names the index cache, in Megatron's order of keys.
  nlohmann::ordered_json identifiers() const;

 private:
  GptIndexRequest request() const;
  void build_or_load_index();
  void check_vocabulary_sample() const;
  void check_vocabulary(std::int64_t sequence, std::int64_t first, std::int64_t count,
                        const std::int64_t* tokens) const;
  void gather(std::int64_t index, std::int64_t* text) const;

  GptDatasetPart part_;
  GptDatasetOptions options_;
  EpochPlan plan_;
  GptIndex index_;
  bool loaded_from_cache_ = false;
};

/// Where GptDataset and blends send warnings: options.warn, or standard error.
WarningFunction warning_function(const GptDatasetOptions& options);

}  // namespace pharos::data

#include "pharos/data/datasets.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/data/indexed/indexed_dataset.h"
#include "pharos/data/mock_sequences.h"
#include "pharos/lens/span.h"

namespace pharos::data {
namespace {

constexpr Split kSplits[] = {Split::kTrain, Split::kValid, Split::kTest};
constexpr std::size_t kMaximumDatasets = 32'767;

std::optional<double> parse_number(const std::string& word) {
  double value = 0;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
  if (result.ec != std::errc() || result.ptr != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

class DatasetBuilder {
 public:
  DatasetBuilder(const DataSources& sources, const GptDatasetOptions& options) : options_(options) {
    if (!sources.blend.empty() && !sources.blend_per_split.empty()) {
      throw base::UserError({.what = "dataset.blend (or data_path) and dataset.blend_per_split are both set.",
                             .why = "They are two ways to say where the data of a split comes from.",
                             .fix = "Keep one of them."});
    }
  }

  std::unique_ptr<SampleDataset> build_mock(Split split, std::optional<std::int64_t> num_samples,
                                            const SplitShares& shares) {
    if (!mock_) {
      const std::int64_t vocab_size =
          options_.vocab_size > 0 ? options_.vocab_size : std::numeric_limits<std::int32_t>::max();
      mock_ = std::make_shared<MockSequences>(vocab_size, options_.end_of_document >= 0 ? options_.end_of_document : 0);
    }
    return build_one(
        {.source = mock_, .path = "", .sequences = {}, .split = split, .shares = shares, .num_samples = num_samples});
  }

  /// `shares` unset: the blend is used whole.
  std::unique_ptr<SampleDataset> build(const Blend& blend, Split split, std::optional<std::int64_t> num_samples,
                                       const std::optional<SplitShares>& shares) {
    if (num_samples && *num_samples == 0) return nullptr;
    if (shares && !shares->bounds[static_cast<std::size_t>(split)]) return nullptr;
    if (blend.prefixes.size() == 1 && !blend.weights)
      return build_prefix(blend.prefixes[0], split, num_samples, shares);
    return blend.weights ? build_weighted(blend, split, num_samples, shares)
                         : build_unweighted(blend, split, num_samples, shares);
  }

 private:
  std::unique_ptr<SampleDataset> build_weighted(const Blend& blend, Split split,
                                                std::optional<std::int64_t> num_samples,
                                                const std::optional<SplitShares>& shares) {
    if (!num_samples) {
      throw base::UserError(
          {.what = std::string("The weighted blend has no number of samples for ") + name(split) + ".",
           .where = "dataset.blend",
           .why = "Weights say how a given number of samples is shared out.",
           .fix = "Give the number of samples (`data inspect`: --num-samples; training: train.train_iters), or leave "
                  "out the "
                  "weights to use everything once."});
    }
    const std::vector<double> shares_of_samples = normalize_weights(*blend.weights);
    std::vector<std::unique_ptr<GptDataset>> datasets;
    std::vector<double> weights;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < shares_of_samples.size(); ++i) {
      if (shares_of_samples[i] == 0) continue;
      const double target = std::ceil(static_cast<double>(*num_samples) * shares_of_samples[i]);
      const auto built = static_cast<std::int64_t>(std::ceil(target * (1.0 + options_.mid_level_dataset_surplus)));
      total += static_cast<std::int64_t>(target);
      datasets.push_back(build_prefix(blend.prefixes[i], split, built, shares));
      weights.push_back(shares_of_samples[i]);
    }
    return std::make_unique<BlendedDataset>(std::move(datasets), normalize_weights(weights), total, split, options_);
  }

  std::unique_ptr<SampleDataset> build_unweighted(const Blend& blend, Split split,
                                                  std::optional<std::int64_t> num_samples,
                                                  const std::optional<SplitShares>& shares) {
    std::vector<std::unique_ptr<GptDataset>> datasets;
    std::vector<double> lengths;
    std::int64_t total = 0;
    for (const std::string& prefix : blend.prefixes) {
      datasets.push_back(build_prefix(prefix, split, std::nullopt, shares));
      lengths.push_back(static_cast<double>(datasets.back()->length()));
      total += datasets.back()->length();
    }
    if (num_samples) num_samples = std::min(*num_samples, total);
    return std::make_unique<BlendedDataset>(std::move(datasets), num_samples ? normalize_weights(lengths) : lengths,
                                            num_samples, split, options_);
  }

  std::unique_ptr<GptDataset> build_prefix(const std::string& path, Split split,
                                           std::optional<std::int64_t> num_samples,
                                           const std::optional<SplitShares>& shares) {
    const std::string prefix = dataset_prefix(path);
    std::shared_ptr<const IndexedDataset>& source = opened_[prefix];
    if (!source) {
      PHAROS_TRACE_REGION("build_low_level_dataset");
      source = std::make_shared<IndexedDataset>(prefix);
      check_length(*source);
    }
    return build_one({.source = source,
                      .path = prefix,
                      .sequences = {0, source->num_sequences()},
                      .split = split,
                      .shares = shares,
                      .num_samples = num_samples});
  }

  std::unique_ptr<GptDataset> build_one(GptDatasetPart part) {
    if (part.shares) {
      const auto sequences = part.shares->sequences(part.split, part.source->num_sequences());
      if (!sequences) return nullptr;
      part.sequences = *sequences;
    }
    return std::make_unique<GptDataset>(std::move(part), options_);
  }

  /// A small part of a large dataset may be repeated until it fills a sample; a whole text that does not fill one is a
  /// mistake.
  void check_length(const IndexedDataset& source) const {
    const std::int64_t needed = options_.seq_length + (options_.add_extra_token_to_sequence ? 1 : 0);
    if (source.num_tokens() >= needed) return;
    throw base::UserError({.what = "The dataset '" + source.prefix() + "' is shorter than one sample.",
                           .where = source.prefix() + ".bin",
                           .why = "It has " + std::to_string(source.num_tokens()) + " tokens; one sample needs " +
                                  std::to_string(needed) + " (dataset.seq_length and the token after it).",
                           .fix = "Use a longer text or a smaller dataset.seq_length."});
  }

  const GptDatasetOptions& options_;
  std::map<std::string, std::shared_ptr<const IndexedDataset>> opened_;
  std::shared_ptr<const MockSequences> mock_;
};

void check_blend(const Blend& blend) {
  if (blend.prefixes.size() >= kMaximumDatasets) {
    throw base::UserError({.what = "The blend has " + std::to_string(blend.prefixes.size()) + " datasets.",
                           .where = "dataset.blend",
                           .why = "Blend indices count datasets in 16 bits.",
                           .fix = "Merge datasets; 32766 is the limit."});
  }
  if (!blend.weights) return;
  double total = 0;
  for (const double weight : *blend.weights) {
    total += weight;
    if (weight >= 0) continue;
    throw base::UserError({.what = "A weight of the blend is " + std::to_string(weight) + ".",
                           .where = "dataset.blend",
                           .why = "A weight is a share of the samples, 0 or more.",
                           .fix = "Correct the weight."});
  }
  if (!std::isfinite(total)) {
    throw base::UserError({.what = "The weights of the blend add up to more than a number can be.",
                           .where = "dataset.blend",
                           .why = "Only the ratios of weights count.",
                           .fix = "Divide all of them by the largest."});
  }
  if (total <= 0)
    throw base::UserError({.what = "The weights of the blend are all zero.",
                           .where = "dataset.blend",
                           .fix = "Give at least one dataset a weight."});
}

}  // namespace

Blend parse_blend(const std::vector<std::string>& words) {
  Blend blend;
  bool weighted = !words.empty() && words.size() % 2 == 0;
  for (std::size_t i = 0; weighted && i < words.size(); i += 2) weighted = parse_number(words[i]).has_value();
  if (!weighted) {
    blend.prefixes = words;
  } else {
    blend.weights.emplace();
    for (std::size_t i = 0; i < words.size(); i += 2) {
      blend.weights->push_back(*parse_number(words[i]));
      blend.prefixes.push_back(words[i + 1]);
    }
  }
  check_blend(blend);
  return blend;
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<GptDataset>> datasets, std::vector<double> weights,
                               std::optional<std::int64_t> num_samples, Split split, const GptDatasetOptions& options)
    : datasets_(std::move(datasets)), seq_length_(options.seq_length) {
  build_or_load_index(weights, num_samples, split, options);
  check_sizes();
}

void BlendedDataset::build_or_load_index(const std::vector<double>& weights, std::optional<std::int64_t> num_samples,
                                         Split split, const GptDatasetOptions& options) {
  std::vector<std::int64_t> sizes;
  nlohmann::ordered_json json;
  json["class"] = "BlendedDataset";
  json["datasets"] = nlohmann::ordered_json::array();
  for (const auto& dataset : datasets_) {
    sizes.push_back(dataset->length());
    json["datasets"].push_back(dataset->identifiers());
  }
  json["weights"] = num_samples ? nlohmann::ordered_json(weights) : nlohmann::ordered_json(sizes);
  json["size"] = num_samples ? nlohmann::ordered_json(*num_samples) : nlohmann::ordered_json();

  const auto build = [&] {
    return num_samples ? build_blend_index(weights, *num_samples) : build_exhaustive_blend_index(sizes);
  };
  if (!options.use_cache || !options.path_to_cache) {
    index_ = build();
    return;
  }
  const IndexCache cache(*options.path_to_cache, json.dump(4, ' ', true, nlohmann::json::error_handler_t::replace),
                         "BlendedDataset", name(split), warning_function(options));
  std::int64_t expected = num_samples.value_or(0);
  if (!num_samples) {
    for (const std::int64_t size : sizes) expected += size;
  }
  if (auto arrays = cache.load({"dataset_index", "dataset_sample_index"})) {
    BlendIndex loaded{std::move((*arrays)[0]), std::move((*arrays)[1])};
    const std::string fault = check_blend_index(loaded, static_cast<std::int64_t>(sizes.size()), expected);
    if (fault.empty()) {
      index_ = std::move(loaded);
      return;
    }
    cache.warn_damaged(fault);
  }
  index_ = build();
  cache.store({{"dataset_index", &index_.dataset_index}, {"dataset_sample_index", &index_.dataset_sample_index}});
}

void BlendedDataset::check_sizes() const {
  for (std::int64_t i = 0; i < length(); ++i) {
    const auto dataset = static_cast<std::size_t>(index_.dataset_index[i]);
    const std::int64_t has = datasets_[dataset]->length();
    if (index_.dataset_sample_index[i] < has) continue;
    throw base::UserError({.what = "The blend asks for more samples of dataset " + std::to_string(dataset) +
                                   " than the " + std::to_string(has) + " it has.",
                           .where = datasets_[dataset]->part().path,
                           .why = "Rounding gave it more samples than were built for it.",
                           .fix = "Raise dataset.mid_level_dataset_surplus."});
  }
}

void BlendedDataset::read(std::int64_t index, const SampleRow& row) const {
  PHAROS_CHECK(index >= 0 && index < length(), "sample " + std::to_string(index) + " of " + std::to_string(length()));
  datasets_[static_cast<std::size_t>(index_.dataset_index[index])]->read(index_.dataset_sample_index[index], row);
}

DatasetSet build_datasets(const DataSources& sources, const SampleCounts& num_samples,
                          const GptDatasetOptions& options) {
  DatasetBuilder builder(sources, options);
  DatasetSet set;
  if (!sources.blend_per_split.empty()) {
    if (sources.blend_per_split.size() != 3) {
      throw base::UserError(
          {.what = "dataset.blend_per_split has " + std::to_string(sources.blend_per_split.size()) + " entries.",
           .fix = "Give three lists: training, validation, test; an empty list for none."});
    }
    for (const Split split : kSplits) {
      const auto i = static_cast<std::size_t>(split);
      if (sources.blend_per_split[i].empty()) continue;
      set[i] = builder.build(parse_blend(sources.blend_per_split[i]), split, num_samples[i], std::nullopt);
    }
    return set;
  }
  const bool mock = sources.blend.empty();
  const SplitShares shares = parse_split(sources.split.value_or(mock ? "1,1,1" : "969,30,1"));
  const Blend blend = mock ? Blend{} : parse_blend(sources.blend);
  for (const Split split : kSplits) {
    const auto i = static_cast<std::size_t>(split);
    if (num_samples[i] && *num_samples[i] == 0) continue;
    set[i] =
        mock ? builder.build_mock(split, num_samples[i], shares) : builder.build(blend, split, num_samples[i], shares);
  }
  return set;
}

}  // namespace pharos::data

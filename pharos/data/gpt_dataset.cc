#include "pharos/data/gpt_dataset.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/lens/span.h"

namespace pharos::data {
namespace {

const std::vector<std::string> kArrays = {"document_index", "sample_index", "shuffle_index"};

void check_options(const GptDatasetOptions& options) {
  if (options.seq_length < 1) {
    throw base::UserError({.what = "dataset.seq_length = " + std::to_string(options.seq_length) + " is not a length.",
                           .fix = "Give the tokens of a sample, 1 or more."});
  }
  if (options.random_seed < 0 || options.random_seed > std::numeric_limits<std::uint32_t>::max()) {
    throw base::UserError({.what = "dataset.random_seed = " + std::to_string(options.random_seed) + " is out of range.",
                           .why = "The shuffle's generator is seeded with 32 bits.",
                           .fix = "Give a seed from 0 to 4294967295."});
  }
}

std::int64_t count_tokens(const GptDatasetPart& part) {
  std::int64_t tokens = 0;
  for (std::int64_t i = part.sequences.first; i < part.sequences.second; ++i) tokens += part.source->length(i);
  return tokens;
}

std::string describe(const GptDatasetPart& part) {
  return std::string("The ") + name(part.split) + " part of " +
         (part.path.empty() ? "the mock data" : "'" + part.path + "'");
}

[[noreturn]] void refuse_no_sequences(const GptDatasetPart& part) {
  const std::string all = std::to_string(part.source->num_sequences());
  const std::string split = part.shares ? part.shares->text : "1";
  throw base::UserError({.what = describe(part) + " has no sequence, but samples are asked of it.",
                         .where = part.path,
                         .why = "The split " + split + " of " + all + " sequences gives it [" +
                                std::to_string(part.sequences.first) + ", " + std::to_string(part.sequences.second) +
                                ").",
                         .fix = "Give it a larger share, for example dataset.split=[90,5,5], prepare the text as more "
                                "sequences (`--sequence-tokens`, `--split-on`), or set its share to 0 and evaluate "
                                "nothing on it."});
}

[[noreturn]] void refuse_short(const GptDatasetPart& part, std::int64_t tokens, std::int64_t needed) {
  throw base::UserError({.what = describe(part) + " is shorter than one sample.",
                         .where = part.path,
                         .why = "It has " + std::to_string(tokens) + " tokens; one sample needs " +
                                std::to_string(needed) + " (dataset.seq_length and the token after it).",
                         .fix = "Use a longer text, a larger share, for example dataset.split=[90,5,5], or a smaller "
                                "dataset.seq_length."});
}

}  // namespace

WarningFunction warning_function(const GptDatasetOptions& options) {
  if (options.warn) return options.warn;
  return [](const std::string& text) { std::cerr << "warning: " << text << "\n"; };
}

void GptDatasetOptions::set_tokenizer(const Tokenizer& tokenizer) {
  vocab_size = tokenizer.vocab_size();
  end_of_document = tokenizer.end_of_document();
  const std::int64_t tokenizer_pad = tokenizer.pad().value_or(-1);
  // A pad that also ends documents would take the loss off every end of document.
  pad = tokenizer_pad == end_of_document ? -1 : tokenizer_pad;
  tokenizer_json = tokenizer.identifiers_json();
}

GptDataset::GptDataset(GptDatasetPart part, const GptDatasetOptions& options)
    : part_(std::move(part)), options_(options) {
  check_options(options_);
  const std::int64_t needed = options_.seq_length + (options_.add_extra_token_to_sequence ? 1 : 0);
  const auto [first, second] = part_.sequences;
  if (first >= second) refuse_no_sequences(part_);
  const std::int64_t tokens = count_tokens(part_);
  if (tokens == 0) refuse_short(part_, tokens, needed);
  plan_ = plan_epochs(tokens, request());
  if (plan_.num_samples < 1) refuse_short(part_, tokens, needed);
  check_vocabulary_sample();
  build_or_load_index();
}

GptIndexRequest GptDataset::request() const {
  return {.sequences = part_.sequences,
          .length = [source = part_.source.get()](std::int64_t sequence) { return source->length(sequence); },
          .num_samples = part_.num_samples,
          .seq_length = options_.seq_length,
          .random_seed = static_cast<std::uint32_t>(options_.random_seed),
          .extra_token = options_.add_extra_token_to_sequence,
          .keep_partial = part_.split == Split::kValid && !options_.drop_last_partial_validation_sequence};
}

nlohmann::ordered_json GptDataset::identifiers() const {
  nlohmann::ordered_json json;
  json["class"] = "GPTDataset";
  json["dataset_path"] = part_.path;
  json["num_samples"] = part_.num_samples ? nlohmann::ordered_json(*part_.num_samples) : nlohmann::ordered_json();
  json["index_split"] = name(part_.split);
  json["random_seed"] = options_.random_seed;
  json["sequence_length"] = options_.seq_length;
  json["split"] = part_.shares ? nlohmann::ordered_json(part_.shares->text) : nlohmann::ordered_json();
  json["split_matrix"] = nlohmann::ordered_json();
  if (part_.shares) {
    json["split_matrix"] = nlohmann::ordered_json::array();
    for (const auto& bound : part_.shares->bounds) {
      nlohmann::ordered_json pair;
      if (bound) pair = {bound->first, bound->second};
      if (bound && bound->first == 0) pair[0] = 0;  // an integer, as Python's running sum starts with one
      json["split_matrix"].push_back(pair);
    }
  }
  json["tokenizer"] = nlohmann::ordered_json::parse(options_.tokenizer_json);
  return json;
}

void GptDataset::build_or_load_index() {
  PHAROS_TRACE_REGION("build_document_index");
  std::optional<IndexCache> cache;
  if (options_.use_cache && !part_.path.empty()) {
    const std::filesystem::path folder = options_.path_to_cache
                                             ? std::filesystem::path(*options_.path_to_cache)
                                             : std::filesystem::path(part_.path) / "cache" / "GPTDataset_indices";
    cache.emplace(folder, identifiers().dump(4, ' ', true, nlohmann::json::error_handler_t::replace), "GPTDataset",
                  name(part_.split), warning_function(options_));
    if (auto arrays = cache->load(kArrays)) {
      GptIndex loaded{std::move((*arrays)[0]), std::move((*arrays)[1]), std::move((*arrays)[2])};
      const std::string fault = check_gpt_index(loaded, request(), plan_);
      if (fault.empty()) {
        index_ = std::move(loaded);
        loaded_from_cache_ = true;
        return;
      }
      cache->warn_damaged(fault);
    }
  }
  index_ = build_gpt_index(request(), plan_);
  if (cache)
    cache->store({{kArrays[0], &index_.document_index},
                  {kArrays[1], &index_.sample_index},
                  {kArrays[2], &index_.shuffle_index}});
}

void GptDataset::check_vocabulary(std::int64_t sequence, std::int64_t first, std::int64_t count,
                                  const std::int64_t* tokens) const {
  if (options_.vocab_size == 0) return;
  const auto outside = [this](std::int64_t token) { return token < 0 || token >= options_.vocab_size; };
  const std::int64_t* found = std::find_if(tokens, tokens + count, outside);
  if (found == tokens + count) return;
  throw base::UserError({.what = "Token " + std::to_string(*found) + " of the data is not in the vocabulary of " +
                                 std::to_string(options_.vocab_size) + " ids.",
                         .where = part_.source->where(sequence, first + (found - tokens)),
                         .why = "The data was made with another tokenizer than the one of this run.",
                         .fix = "Choose the tokenizer the data was prepared with, or prepare the data again."});
}

/// The first tokens of up to 64 sequences spread over the part: finds a wrong tokenizer before training starts. read()
/// checks all.
void GptDataset::check_vocabulary_sample() const {
  constexpr std::int64_t kSequences = 64;
  constexpr std::int64_t kTokens = 1024;
  const auto [first, second] = part_.sequences;
  const std::int64_t count = std::min(kSequences, second - first);
  std::vector<std::int64_t> tokens(kTokens);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto sequence = first + static_cast<std::int64_t>(static_cast<__int128>(second - first) * i / count);
    const std::int64_t length = std::min(kTokens, part_.source->length(sequence));
    part_.source->read(sequence, 0, length, tokens.data());
    check_vocabulary(sequence, 0, length, tokens.data());
  }
}

/// seq_length tokens and the extra one, filled up with `pad` at the end of a partial sample.
void GptDataset::gather(std::int64_t index, std::int64_t* text) const {
  const std::int64_t extra = options_.add_extra_token_to_sequence ? 1 : 0;
  const std::int64_t size = options_.seq_length + extra;
  const std::int64_t sample = index_.shuffle_index[index];
  const std::int64_t first_document = index_.sample_index[2 * sample];
  const std::int64_t last_document = index_.sample_index[2 * sample + 2];
  std::int64_t filled = 0;
  for (std::int64_t document = first_document; document <= last_document; ++document) {
    const std::int64_t sequence = index_.document_index[document];
    const std::int64_t begin = document == first_document ? index_.sample_index[2 * sample + 1] : 0;
    const std::int64_t end =
        document == last_document ? index_.sample_index[2 * sample + 3] + extra : part_.source->length(sequence);
    const std::int64_t count = std::max<std::int64_t>(0, end - begin);
    PHAROS_CHECK(filled + count <= size,
                 "sample " + std::to_string(index) + " has more than " + std::to_string(size) + " tokens");
    part_.source->read(sequence, begin, count, text + filled);
    check_vocabulary(sequence, begin, count, text + filled);
    filled += count;
  }
  std::fill(text + filled, text + size, options_.pad);
}

void GptDataset::read(std::int64_t index, const SampleRow& row) const {
  PHAROS_CHECK(index >= 0 && index < length(), "sample " + std::to_string(index) + " of " + std::to_string(length()));
  const std::int64_t size = options_.seq_length;
  std::vector<std::int64_t> text(static_cast<std::size_t>(size + 1),
                                 options_.pad);  // without extra token the last label is a pad
  gather(index, text.data());

  std::int64_t position = 0;
  std::int64_t segment = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t token = text[static_cast<std::size_t>(i)];
    const std::int64_t label = text[static_cast<std::size_t>(i) + 1];
    const bool ends_document = token == options_.end_of_document && token >= 0;
    row.tokens[i] = token == options_.pad ? 0 : token;
    row.labels[i] = label == options_.pad ? 0 : label;
    row.loss_mask[i] = label == options_.pad || (ends_document && options_.eod_mask_loss) ? 0.0F : 1.0F;
    row.position_ids[i] = position++;
    if (row.segment_ids != nullptr) row.segment_ids[i] = segment;
    if (!ends_document) continue;
    ++segment;
    if (options_.reset_position_ids) position = 0;
  }
}

}  // namespace pharos::data

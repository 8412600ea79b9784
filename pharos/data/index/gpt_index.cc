#include "pharos/data/index/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/data/index/random_streams.h"

namespace pharos::data {
namespace {

constexpr std::int64_t kMaximumInt32 = std::numeric_limits<std::int32_t>::max();

std::int64_t num_sequences(const GptIndexRequest& request) {
  return request.sequences.second - request.sequences.first;
}

IntegerType sample_index_type(std::int64_t num_documents) {
  return num_documents > kMaximumInt32 ? IntegerType::kInt64 : IntegerType::kInt32;
}

IntegerType shuffle_index_type(std::int64_t num_samples) {
  return num_samples >= std::numeric_limits<std::uint32_t>::max() - 1 ? IntegerType::kInt64 : IntegerType::kUint32;
}

IntegerArray build_document_index(const GptIndexRequest& request, const EpochPlan& plan, NumpyLegacyRandom& random) {
  const std::int64_t count = num_sequences(request);
  IntegerArray array(IntegerType::kInt32, count * plan.num_epochs);
  const std::span<std::int32_t> order = array.values<std::int32_t>();
  for (std::int64_t epoch = 0; epoch < plan.num_epochs; ++epoch) {
    const auto start = order.begin() + epoch * count;
    std::iota(start, start + count, static_cast<std::int32_t>(request.sequences.first));
  }
  const auto head =
      static_cast<std::size_t>(plan.separate_last_epoch ? count * (plan.num_epochs - 1) : count * plan.num_epochs);
  random.shuffle(order.first(head));
  if (plan.separate_last_epoch) random.shuffle(order.subspan(head));
  return array;
}

/// Walks the sequences in document order; sample i + 1 starts where sample i has had its seq_length tokens.
template <typename Value>
void fill_sample_index(const GptIndexRequest& request, std::span<const std::int32_t> documents,
                       std::span<Value> entries) {
  const std::int64_t extra = request.extra_token ? 1 : 0;
  std::size_t document = 0;
  std::int64_t offset = 0;
  std::int64_t length = request.length(documents[0]);
  entries[0] = 0;
  entries[1] = 0;
  for (std::size_t entry = 2; entry < entries.size(); entry += 2) {
    std::int64_t needed = request.seq_length + extra;
    for (;;) {
      const std::int64_t have = length - offset;
      if (have >= needed) {
        offset += needed - extra;
        break;
      }
      needed -= have;
      if (document + 1 == documents.size()) {  // only a last, partial sample gets here
        offset = length - extra;
        break;
      }
      length = request.length(documents[++document]);
      offset = 0;
    }
    entries[entry] = static_cast<Value>(document);
    entries[entry + 1] = static_cast<Value>(offset);
  }
}

IntegerArray build_sample_index(const GptIndexRequest& request, const EpochPlan& plan,
                                std::span<const std::int32_t> documents) {
  IntegerArray array(sample_index_type(static_cast<std::int64_t>(documents.size())), plan.num_samples + 1, 2);
  if (array.type() == IntegerType::kInt32) {
    fill_sample_index(request, documents, array.values<std::int32_t>());
  } else {
    fill_sample_index(request, documents, array.values<std::int64_t>());
  }
  return array;
}

template <typename Value>
void fill_shuffle_index(const EpochPlan& plan, NumpyLegacyRandom& random, std::span<Value> order) {
  std::iota(order.begin(), order.end(), Value{0});
  const std::size_t head =
      plan.separate_last_epoch ? static_cast<std::size_t>(plan.samples_before_last_epoch) : order.size();
  random.shuffle(order.first(head));
  if (head < order.size()) random.shuffle(order.subspan(head));
}

/// Every number of [first, first + count) exactly `times` times.
bool is_repeated_range(const IntegerArray& array, std::int64_t first, std::int64_t count, std::int64_t times) {
  std::vector<std::int32_t> seen(static_cast<std::size_t>(count), 0);
  for (std::int64_t i = 0; i < array.size(); ++i) {
    const std::int64_t value = array[i] - first;
    if (value < 0 || value >= count || ++seen[static_cast<std::size_t>(value)] > times) return false;
  }
  return array.size() == count * times;
}

/// Sample i must start at token i * seq_length of the sequences laid end to end, and leave room for the extra token.
std::string check_sample_index(const GptIndex& index, const GptIndexRequest& request, const EpochPlan& plan) {
  const std::int64_t extra = request.extra_token ? 1 : 0;
  const std::int64_t total = plan.num_epochs * plan.tokens_per_epoch;
  std::int64_t document = 0;
  std::int64_t document_start = 0;
  for (std::int64_t sample = 0; sample <= plan.num_samples; ++sample) {
    const std::int64_t entry_document = index.sample_index[2 * sample];
    const std::int64_t offset = index.sample_index[2 * sample + 1];
    if (entry_document < document || entry_document >= index.document_index.size())
      return "sample " + std::to_string(sample) + " starts outside the data";
    for (; document < entry_document; ++document) document_start += request.length(index.document_index[document]);
    const std::int64_t expected = std::min(sample * request.seq_length, total - extra);
    const bool fits = offset >= 0 && offset + extra <= request.length(index.document_index[document]);
    if (!fits || document_start + offset != expected)
      return "sample " + std::to_string(sample) + " does not start where the one before it ends";
  }
  return "";
}

}  // namespace

EpochPlan plan_epochs(std::int64_t tokens_per_epoch, const GptIndexRequest& request) {
  const std::int64_t extra = request.extra_token ? 1 : 0;
  const std::int64_t seq_length = request.seq_length;
  PHAROS_CHECK(tokens_per_epoch > 0 && seq_length > 0,
               "tokens " + std::to_string(tokens_per_epoch) + ", length " + std::to_string(seq_length));
  EpochPlan plan{.tokens_per_epoch = tokens_per_epoch};
  if (request.num_samples) {
    const __int128 needed = static_cast<__int128>(*request.num_samples) * seq_length + extra;
    if (needed > (std::numeric_limits<std::int64_t>::max() >> 1)) {
      throw base::UserError({.what = std::to_string(*request.num_samples) + " samples of " +
                                     std::to_string(seq_length) + " tokens are more than can be counted.",
                             .why = "Their number of tokens does not fit into 62 bits.",
                             .fix = "Ask for fewer samples (train.train_iters, train.global_batch_size)."});
    }
    plan.num_epochs =
        std::max<std::int64_t>(1, static_cast<std::int64_t>((needed + tokens_per_epoch - 1) / tokens_per_epoch));
  }
  const std::int64_t tokens = plan.num_epochs * tokens_per_epoch - extra;
  plan.num_samples = tokens / seq_length;
  if (request.keep_partial) {
    plan.num_samples =
        static_cast<std::int64_t>(std::ceil(static_cast<float>(tokens) / static_cast<float>(seq_length)));
  }
  if (plan.num_epochs > 1) {
    const std::int64_t before = ((plan.num_epochs - 1) * tokens_per_epoch - extra) / seq_length;
    const std::int64_t per_epoch = (tokens_per_epoch - extra) / seq_length;
    plan.separate_last_epoch =
        *request.num_samples - before < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
    if (plan.separate_last_epoch) plan.samples_before_last_epoch = before;
  }
  return plan;
}

GptIndex build_gpt_index(const GptIndexRequest& request, const EpochPlan& plan) {
  NumpyLegacyRandom random(request.random_seed);  // one stream: first the documents, then the samples
  GptIndex index;
  index.document_index = build_document_index(request, plan, random);
  index.sample_index = build_sample_index(request, plan, index.document_index.values<std::int32_t>());
  index.shuffle_index = IntegerArray(shuffle_index_type(plan.num_samples), plan.num_samples);
  if (index.shuffle_index.type() == IntegerType::kUint32) {
    fill_shuffle_index(plan, random, index.shuffle_index.values<std::uint32_t>());
  } else {
    fill_shuffle_index(plan, random, index.shuffle_index.values<std::int64_t>());
  }
  return index;
}

std::string check_gpt_index(const GptIndex& index, const GptIndexRequest& request, const EpochPlan& plan) {
  const std::int64_t count = num_sequences(request);
  const std::int64_t documents = count * plan.num_epochs;
  const auto is = [](const IntegerArray& array, IntegerType type, std::int64_t rows, std::int64_t columns) {
    return array.type() == type && array.rows() == rows && array.columns() == columns;
  };
  if (!is(index.document_index, IntegerType::kInt32, documents, 1)) return "the document index has the wrong size";
  if (!is(index.sample_index, sample_index_type(documents), plan.num_samples + 1, 2))
    return "the sample index has the wrong size";
  if (!is(index.shuffle_index, shuffle_index_type(plan.num_samples), plan.num_samples, 1))
    return "the shuffle index has the wrong size";
  if (!is_repeated_range(index.document_index, request.sequences.first, count, plan.num_epochs))
    return "the document index is not a shuffle of the split's sequences";
  if (!is_repeated_range(index.shuffle_index, 0, plan.num_samples, 1)) return "the shuffle index is not a permutation";
  return check_sample_index(index, request, plan);
}

}  // namespace pharos::data

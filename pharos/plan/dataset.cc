#include "pharos/plan/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <system_error>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/data/datasets.h"
#include "pharos/data/index/split.h"
#include "pharos/data/indexed/indexed_dataset.h"

namespace pharos::plan {
namespace {

using config::RunConfig;

constexpr double kMappedPagesLimit = 256.0 * 1024 * 1024;
constexpr double kMockSequences = 100'000, kMockTokens = kMockSequences * 2048;

template <typename Integer>
Integer read_integer(const char* bytes) {
  Integer value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

void read_header(DataFile& file) {
  const std::string path = file.prefix + ".idx";
  std::ifstream stream(path, std::ios::binary);
  std::error_code error;
  const auto bin_bytes = std::filesystem::file_size(file.prefix + ".bin", error);
  if (!stream || error) return;
  char header[data::kIndexHeaderBytes];
  stream.read(header, sizeof header);
  const auto code = static_cast<std::uint8_t>(header[17]);
  if (stream.gcount() != sizeof header || std::memcmp(header, "MMIDIDX\0\0", 9) != 0 || code < 1 || code > 8) {
    throw base::UserError({.what = "'" + path + "' is not the index of a dataset.",
                           .where = path + ", byte 0",
                           .why = "It does not begin with MMIDIDX and a known element type.",
                           .fix = "Write it anew with `pharos data prepare`."});
  }
  file.found = true;
  file.token_bytes = static_cast<std::int64_t>(data::size_bytes(static_cast<data::TokenType>(code)));
  file.sequences = static_cast<std::int64_t>(read_integer<std::uint64_t>(header + 18));
  file.documents = std::max<std::int64_t>(0, static_cast<std::int64_t>(read_integer<std::uint64_t>(header + 26)) - 1);
  file.tokens = static_cast<std::int64_t>(bin_bytes) / file.token_bytes;
}

/// Fraction of the data that is for training.
double train_share(const config::DatasetConfig& dataset, const std::string& default_split) {
  if (!dataset.blend_per_split.empty()) return 1;
  const auto bounds = data::parse_split(dataset.split.value_or(default_split)).bounds[0];
  return bounds ? bounds->second - bounds->first : 0;
}

std::vector<DataFile> training_files(const config::DatasetConfig& dataset) {
  const auto& words = !dataset.blend_per_split.empty() ? dataset.blend_per_split.front()
                      : dataset.blend.empty()          ? dataset.data_path
                                                       : dataset.blend;
  std::vector<DataFile> files;
  if (words.empty()) return files;
  const data::Blend blend = data::parse_blend(words);
  for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
    files.push_back({.prefix = data::dataset_prefix(blend.prefixes[i])});
    if (blend.weights) files.back().weight = (*blend.weights)[i];
    read_header(files.back());
    if (!blend.weights) files.back().weight = static_cast<double>(files.back().tokens);  // as long as they are
  }
  const double sum =
      std::accumulate(files.begin(), files.end(), 0.0, [](double s, const DataFile& file) { return s + file.weight; });
  for (DataFile& file : files) file.weight = sum > 0 ? file.weight / sum : 1 / static_cast<double>(files.size());
  return files;
}

/// Index arrays of a split: document (4 bytes a sequence), sample (two integers a sample) and shuffle index, over whole
/// epochs.
double index_bytes(double tokens, double sequences, double samples_wanted, double seq_length) {
  if (tokens <= 0 || samples_wanted <= 0) return 0;
  const double epochs = std::max(1.0, std::ceil((samples_wanted * seq_length + 1) / tokens));
  const double integer_bytes = epochs * sequences > 2147483647.0 ? 8 : 4;
  return epochs * (4 * sequences + tokens / seq_length * (2 * integer_bytes + 4));
}

}  // namespace

DatasetPlan plan_dataset(const RunConfig& config, std::int64_t data_parallel_size) {
  DatasetPlan plan;
  plan.files = training_files(config.dataset);
  plan.is_mock = plan.files.empty();
  const auto samples = static_cast<double>(config::total_train_samples(config, data_parallel_size));
  const auto length = static_cast<double>(config.dataset.seq_length.value_or(config.model.seq_length));
  if (plan.is_mock) {
    const double share = train_share(config.dataset, "1,1,1");
    plan.memory_bytes = 4 * kMockSequences + index_bytes(kMockTokens * share, kMockSequences * share, samples, length);
    return plan;
  }
  const double share = train_share(config.dataset, "969,30,1");
  for (DataFile& file : plan.files) {
    file.train_tokens = static_cast<double>(file.tokens) * share;
    const double wanted = samples * file.weight, sequences = static_cast<double>(file.sequences);
    if (file.train_tokens > 0) file.epochs = wanted * length / file.train_tokens;
    const double touched = std::min(static_cast<double>(file.tokens), wanted * length);
    plan.memory_bytes += index_bytes(file.train_tokens, sequences * share, wanted, length) + 20 * sequences +
                         std::min(kMappedPagesLimit, touched * static_cast<double>(file.token_bytes));
  }
  return plan;
}

}  // namespace pharos::plan

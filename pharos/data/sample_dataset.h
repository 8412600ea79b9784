// Numbered training samples.
#pragma once

#include <cstdint>
#include <vector>

namespace pharos::data {

/// Where one sample is written; every pointer has room for seq_length elements.
struct SampleRow {
  std::int64_t* tokens;
  std::int64_t* labels;        ///< the token after each token
  std::int64_t* position_ids;  ///< 0, 1, …; from 0 again after an end of document with reset_position_ids
  std::int64_t* segment_ids;   ///< ends of document seen before this token; may be null. With reset_attention_mask a
                               ///< token attends only to earlier tokens of its own segment
  float* loss_mask;            ///< 1 where the label counts
};

struct Sample {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> labels;
  std::vector<std::int64_t> position_ids;
  std::vector<std::int64_t> segment_ids;
  std::vector<float> loss_mask;
};

class SampleDataset {
 public:
  virtual ~SampleDataset() = default;

  virtual std::int64_t length() const = 0;
  virtual std::int64_t seq_length() const = 0;
  /// Writes sample `index`, 0 <= index < length(). May be called from several threads. A token outside the vocabulary
  /// is a UserError with file and byte.
  virtual void read(std::int64_t index, const SampleRow& row) const = 0;

  Sample get(std::int64_t index) const {
    const auto size = static_cast<std::size_t>(seq_length());
    Sample sample{std::vector<std::int64_t>(size), std::vector<std::int64_t>(size), std::vector<std::int64_t>(size),
                  std::vector<std::int64_t>(size), std::vector<float>(size)};
    read(index, {sample.tokens.data(), sample.labels.data(), sample.position_ids.data(), sample.segment_ids.data(),
                 sample.loss_mask.data()});
    return sample;
  }
};

}  // namespace pharos::data

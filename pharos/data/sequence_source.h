// Where samples get their tokens from: numbered sequences of token ids.
#pragma once

#include <cstdint>
#include <string>

namespace pharos::data {

class SequenceSource {
 public:
  virtual ~SequenceSource() = default;

  virtual std::int64_t num_sequences() const = 0;
  /// Tokens of sequence `sequence`.
  virtual std::int64_t length(std::int64_t sequence) const = 0;
  /// Writes tokens [first, first + count) of a sequence to `tokens`. The range must lie within the sequence.
  virtual void read(std::int64_t sequence, std::int64_t first, std::int64_t count, std::int64_t* tokens) const = 0;
  /// File and byte of a token, for messages.
  virtual std::string where(std::int64_t sequence, std::int64_t token) const = 0;
};

}  // namespace pharos::data

// Which sequences belong to training, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace pharos::data {

enum class Split { kTrain = 0, kValid = 1, kTest = 2 };

/// "train", "valid", "test".
const char* name(Split split);

/// Parsed `split`: three shares, normalised and made cumulative.
struct SplitShares {
  std::string text;  ///< as given
  std::array<std::optional<std::pair<double, double>>, 3>
      bounds{};  ///< [begin, end) of each part in [0, 1]; unset: no share

  /// Sequences [first, second) of `split` among `count`: bounds times count, halves rounded to even. nullopt without a
  /// share.
  std::optional<std::pair<std::int64_t, std::int64_t>> sequences(Split split, std::int64_t count) const;
};

/// "969,30,1", "0.9, 0.1", …: one to three numbers that are not all zero. UserError otherwise.
SplitShares parse_split(const std::string& text);

}  // namespace pharos::data

// Largest sizes a configuration may ask for: far beyond any machine, and such that what is computed from them (bytes of
// a model, samples of a run) fits into 64 bits.
#pragma once

#include <cstdint>

namespace pharos::config {

inline constexpr std::int64_t kMostLayers = 10'000;
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 20;       ///< of the residual stream; MLPs: eight times
inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 16;       ///< also the width of a head
inline constexpr std::int64_t kMostVocabulary = std::int64_t{1} << 27;  ///< tokens
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;      ///< of a sample
inline constexpr std::int64_t kMostBatch = std::int64_t{1} << 31;       ///< samples of a step
inline constexpr std::int64_t kMostSteps = 1'000'000'000;
inline constexpr std::int64_t kMostRanks = std::int64_t{1} << 24;

}  // namespace pharos::config

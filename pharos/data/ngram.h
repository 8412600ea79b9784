// A trigram model of bytes: the number a trained language model has to beat.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pharos/data/sequence_source.h"

namespace pharos::data {

/// Interpolated absolute discounting (Ney, Essen and Kneser 1994): of order n,
///   p_n(c | h) = max(N(hc) - D_n, 0) / N(h) + D_n * T(h) / N(h) * p_{n-1}(c | h'),
/// N counts, T(h) distinct continuations of h, h' = h without its first symbol, D_n = n1 / (n1 + 2 n2) from the numbers
/// of n-grams seen once and twice, p_0 uniform. It has no parameter to tune. Symbols are the bytes and 256, the end of
/// a document.
class TrigramModel {
 public:
  static constexpr std::int64_t kSymbols = 257;

  TrigramModel();

  /// Counts sequences [first, last) of `source`, one after the other as one text. A token above 256 is a UserError.
  void count(const SequenceSource& source, std::int64_t first, std::int64_t last);
  /// Fixes the discounts; call once, after counting.
  void finish();

  /// Natural logarithm of the probability of `symbol` after the two symbols `before` and `previous`.
  double log_probability(std::int64_t before, std::int64_t previous, std::int64_t symbol) const;

  struct Score {
    double nats = 0;  ///< summed
    std::int64_t num_tokens = 0;
    double nats_per_token() const { return nats / static_cast<double>(num_tokens); }
  };
  /// Sequences [first, last) as one text that starts after two ends of document. An end of document counts as a token,
  /// as in a language model's loss.
  Score score(const SequenceSource& source, std::int64_t first, std::int64_t last) const;

  /// D_1, D_2, D_3.
  std::span<const double> discounts() const { return discounts_; }

 private:
  struct Order {
    std::vector<std::uint32_t> counts;    ///< [contexts * kSymbols]
    std::vector<std::uint32_t> totals;    ///< [contexts]: N(h)
    std::vector<std::uint32_t> distinct;  ///< [contexts]: T(h)
  };
  Order orders_[3];
  std::vector<double> discounts_;
};

}  // namespace pharos::data

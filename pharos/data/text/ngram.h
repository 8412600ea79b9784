// A trigram model of bytes: the number a trained language model has to beat.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pharos/data/sequence_source.h"

namespace pharos::data {

/// Sequences [first, last) of a source, read as one text.
struct SequenceRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Deleted interpolation (Jelinek and Mercer 1980). Of order n, with h' = h without its first symbol and p_0 uniform,
///   p_n(c | h) = w * N(hc) / N(h) + (1 - w) * p_{n-1}(c | h'),   w = w_n(floor(log2 N(h))),
/// N counts. The weights w are fitted by EM on text held out from training, never on what is measured: a baseline that
/// is easy to beat would say nothing. Symbols are the bytes and 256, the end of a document.
class TrigramModel {
 public:
  static constexpr std::int64_t kSymbols = 257;

  TrigramModel();

  /// Counts `counted` and fits the weights on `held_out`. Without a held-out part the last tenth of `counted` (at most
  /// 500,000 tokens) is held out for the fit and counted after it. Call once. A token that is not a symbol is a
  /// UserError.
  void train(const SequenceSource& source, const SequenceRange& counted, const SequenceRange& held_out = {});

  /// Natural logarithm of the probability of `symbol` after the two symbols `before` and `previous`.
  double log_probability(std::int64_t before, std::int64_t previous, std::int64_t symbol) const;

  struct Score {
    double nats = 0;  ///< summed
    std::int64_t num_tokens = 0;
    double nats_per_token() const { return nats / static_cast<double>(num_tokens); }
  };
  /// The text starts after two ends of document. An end of document counts as a token, as in a language model's loss.
  Score score(const SequenceSource& source, const SequenceRange& part) const;

  /// The weight of order `order` (1 to 3) in contexts seen 2^bucket to 2^(bucket+1) - 1 times.
  double weight(int order, int bucket) const {
    return weights_[static_cast<std::size_t>(order - 1)][static_cast<std::size_t>(bucket)];
  }

 private:
  static constexpr std::size_t kOrders = 3;
  static constexpr std::size_t kBuckets = 32;
  struct Order {
    std::vector<std::uint32_t> counts;  ///< [contexts * kSymbols]
    std::vector<std::uint32_t> totals;  ///< [contexts]: N(h)
  };
  /// What the orders say about one symbol: relative frequency and bucket of the context, bucket -1 if it was never
  /// seen.
  struct Evidence {
    std::array<double, kOrders> frequency;
    std::array<int, kOrders> bucket;
  };

  void add(std::int64_t before, std::int64_t previous, std::int64_t symbol);
  Evidence evidence(std::int64_t before, std::int64_t previous, std::int64_t symbol) const;
  double probability(const Evidence& evidence) const;
  void fit_weights(const std::vector<Evidence>& held_out);

  std::array<Order, kOrders> orders_;
  std::array<std::array<double, kBuckets>, kOrders> weights_;
};

}  // namespace pharos::data

#include "pharos/data/text/ngram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

constexpr std::int64_t kStart = 256;
constexpr std::int64_t kMaximumHeldOut = 500'000;
constexpr int kIterations = 30;

/// Calls visit(before, previous, symbol) for every token of the sequences.
template <typename Visit>
void walk(const SequenceSource& source, const SequenceRange& part, const Visit& visit) {
  constexpr std::int64_t kBlock = 1 << 16;
  std::vector<std::int64_t> tokens(kBlock);
  std::int64_t before = kStart;
  std::int64_t previous = kStart;
  for (std::int64_t sequence = part.first; sequence < part.last; ++sequence) {
    const std::int64_t length = source.length(sequence);
    for (std::int64_t at = 0; at < length; at += kBlock) {
      const std::int64_t count = std::min(kBlock, length - at);
      source.read(sequence, at, count, tokens.data());
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t symbol = tokens[static_cast<std::size_t>(i)];
        if (symbol < 0 || symbol >= TrigramModel::kSymbols) {
          throw base::UserError(
              {.what = "Token " + std::to_string(symbol) + " is not a byte.",
               .where = source.where(sequence, at + i),
               .why = "The trigram model is one of bytes: tokens 0 to 255, and 256 at the end of a document.",
               .fix = "Prepare the text with `--tokenizer byte`."});
        }
        visit(before, previous, symbol);
        before = previous;
        previous = symbol;
      }
    }
  }
}

std::array<std::size_t, 3> contexts_of(std::int64_t before, std::int64_t previous) {
  return {0, static_cast<std::size_t>(previous), static_cast<std::size_t>(before * TrigramModel::kSymbols + previous)};
}

}  // namespace

TrigramModel::TrigramModel() {
  std::size_t contexts = 1;
  for (Order& order : orders_) {
    order.counts.resize(contexts * kSymbols);
    order.totals.resize(contexts);
    contexts *= kSymbols;
  }
  for (auto& weights : weights_) weights.fill(0.5);
}

void TrigramModel::add(std::int64_t before, std::int64_t previous, std::int64_t symbol) {
  const auto contexts = contexts_of(before, previous);
  for (std::size_t n = 0; n < kOrders; ++n) {
    ++orders_[n].counts[contexts[n] * kSymbols + static_cast<std::size_t>(symbol)];
    ++orders_[n].totals[contexts[n]];
  }
}

TrigramModel::Evidence TrigramModel::evidence(std::int64_t before, std::int64_t previous, std::int64_t symbol) const {
  const auto contexts = contexts_of(before, previous);
  Evidence result{};
  for (std::size_t n = 0; n < kOrders; ++n) {
    const std::uint32_t total = orders_[n].totals[contexts[n]];
    result.bucket[n] = static_cast<int>(std::bit_width(total)) - 1;
    if (total > 0)
      result.frequency[n] =
          static_cast<double>(orders_[n].counts[contexts[n] * kSymbols + static_cast<std::size_t>(symbol)]) / total;
  }
  return result;
}

double TrigramModel::probability(const Evidence& evidence) const {
  double probability = 1.0 / kSymbols;
  for (std::size_t n = 0; n < kOrders; ++n) {
    if (evidence.bucket[n] < 0) continue;  // an unseen context adds nothing to the shorter one
    const double weight = weights_[n][static_cast<std::size_t>(evidence.bucket[n])];
    probability = weight * evidence.frequency[n] + (1 - weight) * probability;
  }
  return probability;
}

/// EM: a token is owed to order n, or to what lies below it, in the ratio of what they contribute to its probability.
void TrigramModel::fit_weights(const std::vector<Evidence>& held_out) {
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    std::array<std::array<double, kBuckets>, kOrders> owed{};
    std::array<std::array<double, kBuckets>, kOrders> reached{};
    for (const Evidence& token : held_out) {
      std::array<double, kOrders> below{};  // probability without order n and those above it
      double probability = 1.0 / kSymbols;
      for (std::size_t n = 0; n < kOrders; ++n) {
        below[n] = probability;
        if (token.bucket[n] < 0) continue;
        const double weight = weights_[n][static_cast<std::size_t>(token.bucket[n])];
        probability = weight * token.frequency[n] + (1 - weight) * probability;
      }
      double share = 1;  // of this token that is left to order n and below
      for (std::size_t n = kOrders; n-- > 0;) {
        if (token.bucket[n] < 0) continue;
        const auto bucket = static_cast<std::size_t>(token.bucket[n]);
        const double from_order = weights_[n][bucket] * token.frequency[n];
        const double own = from_order / (from_order + (1 - weights_[n][bucket]) * below[n]);
        owed[n][bucket] += share * own;
        reached[n][bucket] += share;
        share *= 1 - own;
      }
    }
    for (std::size_t n = 0; n < kOrders; ++n) {
      for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
        // Never all or nothing: what held-out text did not show may still come.
        if (reached[n][bucket] > 0)
          weights_[n][bucket] = std::clamp(owed[n][bucket] / reached[n][bucket], 1e-4, 1 - 1e-4);
      }
    }
  }
}

void TrigramModel::train(const SequenceSource& source, const SequenceRange& counted, const SequenceRange& held_out) {
  std::int64_t num_tokens = 0;
  for (std::int64_t sequence = counted.first; sequence < counted.last; ++sequence)
    num_tokens += source.length(sequence);
  const bool has_held_out = held_out.first < held_out.last;
  const std::int64_t num_first = has_held_out ? num_tokens : num_tokens - std::min(num_tokens / 10, kMaximumHeldOut);

  const auto visit_range = [&](std::int64_t begin, std::int64_t end, const auto& visit) {
    std::int64_t position = 0;
    walk(source, counted, [&](std::int64_t before, std::int64_t previous, std::int64_t symbol) {
      if (position >= begin && position < end) visit(before, previous, symbol);
      ++position;
    });
  };
  const auto count = [this](std::int64_t before, std::int64_t previous, std::int64_t symbol) {
    add(before, previous, symbol);
  };
  std::vector<Evidence> fitted;
  const auto collect = [&](std::int64_t before, std::int64_t previous, std::int64_t symbol) {
    if (static_cast<std::int64_t>(fitted.size()) < kMaximumHeldOut)
      fitted.push_back(evidence(before, previous, symbol));
  };
  visit_range(0, num_first, count);
  if (has_held_out) {
    walk(source, held_out, collect);
    fit_weights(fitted);
    return;
  }
  visit_range(num_first, num_tokens, collect);
  fit_weights(fitted);
  visit_range(num_first, num_tokens, count);
}

double TrigramModel::log_probability(std::int64_t before, std::int64_t previous, std::int64_t symbol) const {
  return std::log(probability(evidence(before, previous, symbol)));
}

TrigramModel::Score TrigramModel::score(const SequenceSource& source, const SequenceRange& part) const {
  Score score;
  walk(source, part, [&](std::int64_t before, std::int64_t previous, std::int64_t symbol) {
    score.nats -= log_probability(before, previous, symbol);
    ++score.num_tokens;
  });
  return score;
}

}  // namespace pharos::data

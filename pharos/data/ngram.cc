#include "pharos/data/ngram.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

constexpr std::int64_t kStart = 256;

/// Calls visit(before, previous, symbol) for every token of the sequences.
template <typename Visit>
void walk(const SequenceSource& source, std::int64_t first, std::int64_t last, const Visit& visit) {
  constexpr std::int64_t kBlock = 1 << 16;
  std::vector<std::int64_t> tokens(kBlock);
  std::int64_t before = kStart;
  std::int64_t previous = kStart;
  for (std::int64_t sequence = first; sequence < last; ++sequence) {
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

}  // namespace

TrigramModel::TrigramModel() {
  std::size_t contexts = 1;
  for (Order& order : orders_) {
    order.counts.resize(contexts * kSymbols);
    order.totals.resize(contexts);
    order.distinct.resize(contexts);
    contexts *= kSymbols;
  }
}

void TrigramModel::count(const SequenceSource& source, std::int64_t first, std::int64_t last) {
  walk(source, first, last, [&](std::int64_t before, std::int64_t previous, std::int64_t symbol) {
    const std::int64_t contexts[3] = {0, previous, before * kSymbols + previous};
    for (int n = 0; n < 3; ++n) {
      const auto context = static_cast<std::size_t>(contexts[n]);
      const auto gram = context * kSymbols + static_cast<std::size_t>(symbol);
      if (orders_[n].counts[gram]++ == 0) ++orders_[n].distinct[context];
      ++orders_[n].totals[context];
    }
  });
}

void TrigramModel::finish() {
  discounts_.clear();
  for (const Order& order : orders_) {
    const auto once = static_cast<double>(std::count(order.counts.begin(), order.counts.end(), 1U));
    const auto twice = static_cast<double>(std::count(order.counts.begin(), order.counts.end(), 2U));
    // No n-gram seen once or twice: too little text to estimate from, any discount inside (0, 1) will do.
    discounts_.push_back(once > 0 && twice > 0 ? once / (once + 2 * twice) : 0.5);
  }
}

double TrigramModel::log_probability(std::int64_t before, std::int64_t previous, std::int64_t symbol) const {
  const std::int64_t contexts[3] = {0, previous, before * kSymbols + previous};
  double probability = 1.0 / kSymbols;
  for (int n = 0; n < 3; ++n) {
    const auto context = static_cast<std::size_t>(contexts[n]);
    const double total = orders_[n].totals[context];
    if (total == 0) continue;  // an unseen context adds nothing to the shorter one
    const double count = orders_[n].counts[context * kSymbols + static_cast<std::size_t>(symbol)];
    const double discount = discounts_[static_cast<std::size_t>(n)];
    probability =
        std::max(count - discount, 0.0) / total + discount * orders_[n].distinct[context] / total * probability;
  }
  return std::log(probability);
}

TrigramModel::Score TrigramModel::score(const SequenceSource& source, std::int64_t first, std::int64_t last) const {
  PHAROS_CHECK(!discounts_.empty(), "finish() was not called");
  Score score;
  walk(source, first, last, [&](std::int64_t before, std::int64_t previous, std::int64_t symbol) {
    score.nats -= log_probability(before, previous, symbol);
    ++score.num_tokens;
  });
  return score;
}

}  // namespace pharos::data

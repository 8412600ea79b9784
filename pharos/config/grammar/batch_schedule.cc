#include "pharos/config/grammar/batch_schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "pharos/base/error.h"
#include "pharos/config/derived.h"
#include "pharos/config/overrides/value.h"

namespace pharos::config {
namespace {

[[noreturn]] void fail(const std::string& text, const std::string& rule) {
  throw base::UserError({.what = "train.step_batch_size_schedule = " + text.substr(0, 200) + " " + rule + ".",
                         .fix = "Write threshold:size entries, for example \"0:768 250B:1536\"."});
}

std::int64_t parse_threshold(const std::string& text, const std::string& word) {
  static constexpr std::string_view kSuffixes = "KMBT";
  std::string number = word;
  double scale = 1.0;
  if (!word.empty() && kSuffixes.find(word.back()) != std::string_view::npos) {
    scale = std::pow(1000.0, static_cast<double>(kSuffixes.find(word.back()) + 1));
    number.pop_back();
  }
  const Value value = classify_word(number);
  const bool integer = value.kind == Value::Kind::kInteger;
  const double threshold = (integer ? static_cast<double>(value.integer) : value.number) * scale;
  const bool valid = (integer || value.kind == Value::Kind::kFloat) && threshold >= 0 && threshold < 9e18;
  if (!valid) fail(text, "has threshold " + word + ", which is no count of tokens");
  return std::llround(threshold);
}

/// Largest multiple of `unit` that is at most `size`.
std::int64_t round_down(std::int64_t size, std::int64_t unit) { return size / unit * unit; }

}  // namespace

std::vector<BatchStep> parse_batch_schedule(const std::string& text) {
  std::vector<BatchStep> steps;
  std::string word;
  const auto finish = [&] {
    if (word.empty()) return;
    const auto colon = word.find(':');
    if (colon == std::string::npos) fail(text, "has entry " + word + " without a colon");
    const Value size = classify_word(word.substr(colon + 1));
    if (size.kind != Value::Kind::kInteger || size.integer < 1)
      fail(text, "has entry " + word + " whose size is no positive integer");
    const std::int64_t threshold = parse_threshold(text, word.substr(0, colon));
    if (steps.empty() && threshold != 0) fail(text, "does not start with threshold 0");
    if (!steps.empty() && threshold <= steps.back().first_token) fail(text, "has thresholds that do not increase");
    steps.push_back({threshold, size.integer});
    word.clear();
  };
  for (const char c : text) {
    if (c == ',' || c == ' ') {
      finish();
    } else {
      word += c;
    }
  }
  finish();
  if (steps.empty()) fail(text, "is empty");
  return steps;
}

std::int64_t global_batch_size_at(const RunConfig& config, std::int64_t consumed_samples, std::int64_t data_parallel) {
  const TrainConfig& train = config.train;
  PHAROS_CHECK(train.global_batch_size && train.micro_batch_size, "batch sizes are not set");
  std::int64_t size = *train.global_batch_size;
  if (train.rampup_batch_size && train.rampup_batch_size->size() == 3) {
    const auto& ramp = *train.rampup_batch_size;
    const std::int64_t num_increments = ramp[1] > 0 ? (size - ramp[0]) / ramp[1] : 0;
    if (num_increments > 0 && consumed_samples < ramp[2]) {
      const double samples_each = static_cast<double>(ramp[2]) / static_cast<double>(num_increments);
      const auto num_done = static_cast<std::int64_t>(static_cast<double>(consumed_samples) / samples_each);
      size = std::min(size, ramp[0] + num_done * ramp[1]);
    }
  } else if (train.step_batch_size_schedule) {
    // Thresholds count tokens; Megatron turns them into whole samples, rounding down.
    const std::int64_t tokens_each = config.dataset.seq_length.value_or(config.model.seq_length);
    for (const BatchStep& step : parse_batch_schedule(*train.step_batch_size_schedule)) {
      if (consumed_samples >= step.first_token / tokens_each) size = step.global_batch_size;
    }
  }
  return train.decrease_batch_size_if_needed ? round_down(size, *train.micro_batch_size * data_parallel) : size;
}

namespace {

/// Steps, at least one, that start after `consumed` samples and have the size of the first of them for sure.
std::int64_t steps_of_same_size(const RunConfig& config, std::int64_t consumed, std::int64_t size) {
  const TrainConfig& train = config.train;
  std::int64_t change = std::numeric_limits<std::int64_t>::max();  // samples after which the size may be another
  if (train.rampup_batch_size && train.rampup_batch_size->size() == 3) {
    const auto& ramp = *train.rampup_batch_size;
    const std::int64_t num_increments = ramp[1] > 0 ? (*train.global_batch_size - ramp[0]) / ramp[1] : 0;
    if (num_increments > 0 && consumed < ramp[2]) {
      const double samples_each = static_cast<double>(ramp[2]) / static_cast<double>(num_increments);
      const double num_done = std::floor(static_cast<double>(consumed) / samples_each);
      // A little early: rounding decides about the last steps before a change, and those are taken one by one.
      change = static_cast<std::int64_t>((num_done + 1) * samples_each * (1 - 1e-12)) - 1;
    }
  } else if (train.step_batch_size_schedule) {
    const std::int64_t tokens_each = config.dataset.seq_length.value_or(config.model.seq_length);
    for (const BatchStep& step : parse_batch_schedule(*train.step_batch_size_schedule)) {
      if (step.first_token / tokens_each > consumed) change = std::min(change, step.first_token / tokens_each);
    }
  }
  return std::max<std::int64_t>(1, (change - consumed) / size);
}

}  // namespace

std::int64_t total_train_iterations(const RunConfig& config, std::int64_t data_parallel) {
  const TrainConfig& train = config.train;
  if (train.train_iters) return *train.train_iters;
  PHAROS_CHECK(train.train_samples.has_value(), "neither train_iters nor train_samples is set");
  const bool changes = train.rampup_batch_size || train.step_batch_size_schedule;
  if (!changes) return *train.train_samples / std::max<std::int64_t>(1, global_batch_size_at(config, 0, data_parallel));
  std::int64_t consumed = 0, iterations = 0;
  while (true) {
    const std::int64_t size = global_batch_size_at(config, consumed, data_parallel);
    if (size <= 0 || consumed + size > *train.train_samples) return iterations;
    const std::int64_t steps =
        std::min(steps_of_same_size(config, consumed, size), (*train.train_samples - consumed) / size);
    consumed += steps * size;
    iterations += steps;
  }
}

namespace {

/// Calls visit(size, steps) for successive steps of the same global batch size until the run is over.
template <typename Visit>
void for_each_batch_size(const RunConfig& config, std::int64_t data_parallel, const Visit& visit) {
  const std::int64_t iterations = total_train_iterations(config, data_parallel);
  std::int64_t consumed = 0;
  for (std::int64_t done = 0; done < iterations;) {
    const std::int64_t size = global_batch_size_at(config, consumed, data_parallel);
    if (size <= 0) return;
    const std::int64_t steps = std::min(iterations - done, steps_of_same_size(config, consumed, size));
    visit(size, steps);
    consumed += steps * size;
    done += steps;
  }
}

}  // namespace

std::int64_t total_train_samples(const RunConfig& config, std::int64_t data_parallel) {
  std::int64_t consumed = 0;
  for_each_batch_size(config, data_parallel, [&](std::int64_t size, std::int64_t steps) { consumed += steps * size; });
  return consumed;
}

std::vector<std::int64_t> global_batch_sizes(const RunConfig& config, std::int64_t data_parallel) {
  std::set<std::int64_t> sizes;
  for_each_batch_size(config, data_parallel, [&](std::int64_t size, std::int64_t /*steps*/) { sizes.insert(size); });
  return {sizes.begin(), sizes.end()};
}

}  // namespace pharos::config

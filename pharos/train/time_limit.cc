#include "pharos/train/time_limit.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "pharos/base/error.h"
#include "pharos/base/untrusted/printable.h"

namespace pharos::train {
namespace {

constexpr std::size_t kRecentSteps = 10;
/// Of a step; forward alone is a third of its work, with one-time work of a first evaluation on top.
constexpr double kEvaluationShare = 0.5;

std::optional<double> parse_seconds(const std::string& text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(seconds)) return std::nullopt;
  return seconds;
}

}  // namespace

std::optional<double> find_time_limit_end(const lens::Environment& environment, std::string& warning) {
  if (const auto text = environment.get_nonblank("PHAROS_TIME_LIMIT_END")) {
    const auto end = parse_seconds(*text);
    if (end && *end > 0) return end;
    throw base::UserError({.what = "PHAROS_TIME_LIMIT_END = " + *text + " is not a time.",
                           .where = "environment",
                           .why = "It says when the job ends, in seconds since 1970.",
                           .fix = "Set it to, for example, $(( $(date +%s) + 3600 )), or unset it."});
  }
  const auto text = environment.get_nonblank("SLURM_JOB_END_TIME");
  if (!text) return std::nullopt;
  const auto end = parse_seconds(*text);
  if (!end || *end < 0) {
    warning = "SLURM_JOB_END_TIME = " + base::printable(base::shortened(*text, 100)) +
              " is not a time in seconds since 1970; no time limit is kept.";
  }
  return end && *end > 0 ? end : std::nullopt;
}

void Durations::add_step(double seconds) {
  if (++num_steps_ == 2) steps_.clear();
  steps_.push_back(seconds);
  if (steps_.size() > kRecentSteps) steps_.pop_front();
}

void Durations::add_save(double seconds) {
  save_s_ = has_saved_ ? std::max(save_s_, seconds) : seconds;
  has_saved_ = true;
}

void Durations::add_evaluation(DataSplit split, double seconds) {
  auto& longest = evaluations_.at(static_cast<std::size_t>(split));
  longest = std::max(longest.value_or(0), seconds);
}

double Durations::step_s() const { return steps_.empty() ? 0 : *std::max_element(steps_.begin(), steps_.end()); }

double Durations::evaluation_s(DataSplit split, std::int64_t num_samples, std::int64_t step_samples) const {
  if (const auto& own = evaluations_.at(static_cast<std::size_t>(split))) return *own;
  for (const auto& other : evaluations_) {
    if (other) return *other;
  }
  if (step_samples <= 0) return 0;
  return kEvaluationShare * step_s() * static_cast<double>(num_samples) / static_cast<double>(step_samples);
}

}  // namespace pharos::train

#include "pharos/lens/context/sampler.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/base/text.h"
#include "pharos/lens/context/trim.h"

namespace pharos::lens {

using internal::trimmed;

namespace {

class ConstantSampler : public Sampler {
 public:
  ConstantSampler(bool is_on, std::string description) : is_on_(is_on), description_(std::move(description)) {}
  bool is_sampled(const SpanContext&, std::uint64_t, std::uint64_t) const override { return is_on_; }
  std::string description() const override { return description_; }

 private:
  bool is_on_;
  std::string description_;
};

/// `value` as short as it can be said: "0.5".
std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

class TraceIdRatioSampler : public Sampler {
 public:
  explicit TraceIdRatioSampler(double ratio)
      : ratio_(ratio >= 0 ? std::min(ratio, 1.0) : (ratio < 0 ? 0.0 : 1.0)),
        is_all_(ratio_ >= 1),
        bound_(is_all_ ? 0 : static_cast<std::uint64_t>(std::round(ratio_ * 0x1p64))) {}
  bool is_sampled(const SpanContext&, std::uint64_t, std::uint64_t trace_id_low) const override {
    return is_all_ || trace_id_low < bound_;
  }
  std::string description() const override { return "TraceIdRatioBased{" + number_text(ratio_) + "}"; }

 private:
  double ratio_;
  bool is_all_;
  std::uint64_t bound_;
};

class ParentBasedSampler : public Sampler {
 public:
  explicit ParentBasedSampler(SamplerPointer root) : root_(std::move(root)) {}
  bool is_sampled(const SpanContext& parent, std::uint64_t trace_id_high, std::uint64_t trace_id_low) const override {
    return parent ? parent.is_sampled() : root_->is_sampled(parent, trace_id_high, trace_id_low);
  }
  std::string description() const override { return "ParentBased{root:" + root_->description() + "}"; }

 private:
  SamplerPointer root_;
};

class ComposedSampler : public Sampler {
 public:
  explicit ComposedSampler(std::vector<SamplerPointer> samplers) : samplers_(std::move(samplers)) {}
  bool is_sampled(const SpanContext& parent, std::uint64_t trace_id_high, std::uint64_t trace_id_low) const override {
    return std::all_of(samplers_.begin(), samplers_.end(), [&](const SamplerPointer& sampler) {
      return sampler->is_sampled(parent, trace_id_high, trace_id_low);
    });
  }
  std::string description() const override {
    std::vector<std::string> parts;
    for (const SamplerPointer& sampler : samplers_) parts.push_back(sampler->description());
    return "Composed{" + base::join(parts, ", ") + "}";
  }

 private:
  std::vector<SamplerPointer> samplers_;
};

/// A number of [0, 1].
std::optional<double> parse_ratio(std::string_view text) {
  double ratio = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (error != std::errc() || end != text.data() + text.size() || !(ratio >= 0 && ratio <= 1)) return std::nullopt;
  return ratio;
}

}  // namespace

SamplerPointer make_always_on_sampler() { return std::make_shared<ConstantSampler>(true, "AlwaysOnSampler"); }
SamplerPointer make_always_off_sampler() { return std::make_shared<ConstantSampler>(false, "AlwaysOffSampler"); }

SamplerPointer make_trace_id_ratio_sampler(double ratio) { return std::make_shared<TraceIdRatioSampler>(ratio); }

SamplerPointer make_parent_based_sampler(SamplerPointer root) {
  return std::make_shared<ParentBasedSampler>(std::move(root));
}

SamplerPointer make_rank_aware_sampler(int rank, double rate) {
  // As nemo-lens: 1 and 0 need no bucket, so that rank 2491 of bucket 9999 has no say in it.
  const bool is_on = rate >= 1 || (rate > 0 && sampling_bucket(rank) / 10000.0 < rate);
  const std::string description = "RankAwareSampler{rank=" + std::to_string(rank) + ",rate=" + number_text(rate) + "}";
  return std::make_shared<ConstantSampler>(is_on, description);
}

SamplerPointer make_composed_sampler(std::vector<SamplerPointer> samplers) {
  return std::make_shared<ComposedSampler>(std::move(samplers));
}

SamplerPointer make_sampler(std::string_view name, std::string_view argument, std::string& warning) {
  warning.clear();
  std::string kind(trimmed(name));
  std::transform(kind.begin(), kind.end(), kind.begin(), [](unsigned char letter) { return std::tolower(letter); });
  constexpr std::string_view kParentBased = "parentbased_";
  const bool is_parent_based = kind.starts_with(kParentBased);
  const std::string root = is_parent_based ? kind.substr(kParentBased.size()) : kind;
  SamplerPointer sampler;
  if (root == "always_on") sampler = make_always_on_sampler();
  if (root == "always_off") sampler = make_always_off_sampler();
  if (root == "traceidratio") {
    const std::optional<double> ratio = parse_ratio(trimmed(argument));
    if (!ratio && !trimmed(argument).empty()) {
      warning = "The sampling ratio \"" + std::string(argument) + "\" is no number from 0 to 1; 1 is used.";
    }
    sampler = make_trace_id_ratio_sampler(ratio.value_or(1.0));
  }
  if (sampler == nullptr) {
    if (!kind.empty()) warning = "There is no sampler \"" + kind + "\"; parentbased_always_on is used.";
    return make_parent_based_sampler(make_always_on_sampler());
  }
  return is_parent_based ? make_parent_based_sampler(std::move(sampler)) : sampler;
}

int sampling_bucket(int rank) {
  const std::string text = std::to_string(rank);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int num_bytes = 0;
  if (EVP_Digest(text.data(), text.size(), digest, &num_bytes, EVP_md5(), nullptr) != 1) {
    throw base::InternalError("libcrypto computes no MD5");
  }
  int bucket = 0;
  for (unsigned int i = 0; i < num_bytes; ++i) bucket = (bucket * 256 + digest[i]) % 10000;
  return bucket;
}

}  // namespace pharos::lens

#include "pharos/nn/moe/load.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace pharos::nn {

LoadSummary summarize_load(const at::Tensor& tokens_per_expert, double num_dropped) {
  const at::Tensor counts = tokens_per_expert.to(at::kCPU, at::kDouble).contiguous();
  const double* count = counts.const_data_ptr<double>();
  const std::int64_t experts = counts.numel();
  LoadSummary summary;
  summary.num_dead = std::count(count, count + experts, 0.0);
  const double total = counts.sum().item<double>();
  if (total == 0) return summary;
  summary.max_over_mean = counts.max().item<double>() * static_cast<double>(experts) / total;
  summary.dropped_fraction = num_dropped / total;
  summary.entropy = experts > 1 ? 0 : 1;
  for (std::int64_t e = 0; e < experts; ++e) {
    const double share = count[e] / total;
    if (share > 0 && experts > 1) summary.entropy -= share * std::log(share) / std::log(static_cast<double>(experts));
  }
  return summary;
}

}  // namespace pharos::nn

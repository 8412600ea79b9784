#include "pharos/optim/clip.h"

#include <ATen/Dispatch.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

/// In order of the elements: a parallel sum would depend on the number of threads.
double square_sum(const at::Tensor& norms) {
  const at::Tensor on_host = norms.to(at::kCPU).contiguous();
  double sum = 0;
  AT_DISPATCH_FLOATING_TYPES(on_host.scalar_type(), "square_sum", [&] {
    const auto* values = on_host.const_data_ptr<scalar_t>();
    for (std::int64_t i = 0; i < on_host.numel(); ++i)
      sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  });
  return sum;
}

}  // namespace

double sum_of_squares(const at::Tensor& flat) {
  PHAROS_CHECK(flat.dim() == 1 && flat.is_contiguous() && flat.scalar_type() == at::kFloat,
               "the norm is taken of a flat fp32 buffer");
  if (flat.is_cuda()) return square_sum(at::linalg_vector_norm(flat, 2, std::nullopt, false, at::kDouble));
  const std::int64_t num_blocks = flat.numel() / kNormBlock;
  const std::int64_t num_whole = num_blocks * kNormBlock;
  double sum = 0;
  if (num_blocks > 0)
    sum += square_sum(at::linalg_vector_norm(flat.narrow(0, 0, num_whole).view({num_blocks, kNormBlock}), 2, 1));
  if (num_whole < flat.numel())
    sum += square_sum(at::linalg_vector_norm(flat.narrow(0, num_whole, flat.numel() - num_whole), 2));
  if (std::isfinite(sum)) return sum;
  sum = 0;  // an element is not finite, or its square overflows fp32: in double it cannot
  constexpr std::int64_t kChunk = 1 << 20;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += kChunk) {
    sum += square_sum(flat.narrow(0, begin, std::min(kChunk, flat.numel() - begin)));
  }
  return sum;
}

double clip_coefficient(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

std::int64_t num_nonzero(const at::Tensor& flat) { return at::count_nonzero(flat).item<std::int64_t>(); }

}  // namespace pharos::optim

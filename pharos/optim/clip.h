// Global gradient norm and clipping.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pharos::optim {

/// Sum of squares of `flat` (fp32, one axis, contiguous): fp32 within blocks of kNormBlock elements, double across
/// them, or double throughout where fp32 would overflow. The result does not depend on the number of threads. Not
/// finite exactly when an element is not.
double sum_of_squares(const at::Tensor& flat);

inline constexpr std::int64_t kNormBlock = 4096;

/// Factor that brings a gradient of L2 norm `norm` to at most `max_norm`: min(1, max_norm / (norm + 1e-6)).
/// max_norm 0 means no clipping.
double clip_coefficient(double norm, double max_norm);

/// Elements of `flat` that are not zero.
std::int64_t num_nonzero(const at::Tensor& flat);

}  // namespace pharos::optim

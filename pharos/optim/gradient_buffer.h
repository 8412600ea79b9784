// One flat fp32 buffer for the gradients of a rank's parameters. Weight-gradient GEMMs accumulate straight into its
// views; a data-parallel reduction works on its buckets, which are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// Places of tensors in a flat buffer, in elements. Each begins at a multiple of kFlatAlignment.
struct FlatLayout {
  std::vector<std::int64_t> offsets;              ///< [parameter]
  std::vector<std::vector<std::int64_t>> shapes;  ///< [parameter]
  std::int64_t num_elements = 0;                  ///< of the buffer, padding included
};

/// 256 bytes of fp32: whole cache lines, and what vector loads and collectives like best.
inline constexpr std::int64_t kFlatAlignment = 64;

/// View of parameter `index` in `flat` [layout.num_elements].
at::Tensor flat_view(const at::Tensor& flat, const FlatLayout& layout, std::size_t index);

/// A contiguous range of the buffer whose gradients are reduced together.
struct Bucket {
  std::int64_t begin = 0;               ///< elements, a multiple of kFlatAlignment
  std::int64_t end = 0;                 ///< likewise, past the last
  std::vector<std::size_t> parameters;  ///< indices, in the order in which their gradients become ready
};

class GradientBuffer {
 public:
  /// Lays out `parameters` (given in forward order, with materialised data on one device) last first, as their
  /// gradients become ready, and makes each main_grad a zeroed view with the parameter's shape. A bucket is closed once
  /// it holds `bucket_size` elements; 0 makes one bucket. The parameters must outlive the buffer.
  explicit GradientBuffer(std::vector<tensor::Parameter*> parameters, std::int64_t bucket_size = 0);
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  void zero();

  const std::vector<tensor::Parameter*>& parameters() const { return parameters_; }
  const FlatLayout& layout() const { return layout_; }
  /// fp32 [layout().num_elements]; the padding between parameters is zero and stays so.
  const at::Tensor& flat() const { return flat_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  at::Tensor bucket_view(const Bucket& bucket) const;
  /// Elements of all parameters, without padding.
  std::int64_t num_elements() const { return num_elements_; }

  /// Names of the parameters whose gradient has a NaN or an infinity, in forward order.
  std::vector<std::string> non_finite_parameters() const;

 private:
  std::vector<tensor::Parameter*> parameters_;
  FlatLayout layout_;
  std::vector<Bucket> buckets_;
  at::Tensor flat_;
  std::int64_t num_elements_ = 0;
};

}  // namespace pharos::optim

// One flat fp32 buffer for the gradients of a rank's parameters. Weight-gradient GEMMs accumulate straight into its
// views; a data-parallel reduction works on its buckets, which are contiguous.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/optim/flat_layout.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

class GradientBuffer {
 public:
  /// Lays out `parameters` (given in forward order, with materialised data on one device) last first, as their
  /// gradients become ready, and makes each main_grad a zeroed view with the parameter's shape. A bucket is closed once
  /// it holds `bucket_size` elements; 0: never. The parameters must outlive the buffer.
  explicit GradientBuffer(std::vector<tensor::Parameter*> parameters, std::int64_t bucket_size = 0);
  /// The same with a layout of these parameters made before.
  GradientBuffer(std::vector<tensor::Parameter*> parameters, FlatLayout layout);
  GradientBuffer(const GradientBuffer&) = delete;
  GradientBuffer& operator=(const GradientBuffer&) = delete;

  void zero();

  const std::vector<tensor::Parameter*>& parameters() const { return parameters_; }
  const FlatLayout& layout() const { return layout_; }
  /// fp32 [layout().num_elements]; the padding between parameters is zero and stays so.
  const at::Tensor& flat() const { return flat_; }
  const std::vector<Bucket>& buckets() const { return layout_.buckets; }
  at::Tensor bucket_view(const Bucket& bucket) const;
  /// Elements of all parameters, without padding.
  std::int64_t num_elements() const { return num_elements_; }

  /// Names of the parameters whose gradient has a NaN or an infinity, in forward order.
  std::vector<std::string> non_finite_parameters() const;

 private:
  std::vector<tensor::Parameter*> parameters_;
  FlatLayout layout_;
  at::Tensor flat_;
  std::int64_t num_elements_ = 0;
};

}  // namespace pharos::optim

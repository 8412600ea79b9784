// Parameters for the tests of this module.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// Owns parameters "weight_0", "weight_1", … with normal values; those of one dimension do not decay.
class TestParameters {
 public:
  explicit TestParameters(const std::vector<std::vector<std::int64_t>>& shapes, at::ScalarType dtype = at::kFloat) {
    at::manual_seed(11);
    for (const auto& shape : shapes) {
      auto parameter = std::make_unique<tensor::Parameter>();
      parameter->name = "weight_" + std::to_string(owned_.size());
      parameter->data = at::randn(shape).to(dtype).requires_grad_();
      parameter->weight_decay = shape.size() > 1;
      owned_.push_back(std::move(parameter));
    }
  }

  std::vector<tensor::Parameter*> all() const {
    std::vector<tensor::Parameter*> pointers;
    for (const auto& parameter : owned_) pointers.push_back(parameter.get());
    return pointers;
  }
  tensor::Parameter& operator[](std::size_t index) const { return *owned_[index]; }
  std::size_t size() const { return owned_.size(); }

  /// The gradients of step `step`: normal values times `scale`, the same for every instance.
  void fill_gradients(int step, double scale) const {
    at::manual_seed(static_cast<std::uint64_t>(1000 + step));
    for (const auto& parameter : owned_) parameter->main_grad.copy_(at::randn(parameter->data.sizes()) * scale);
  }

  /// Copies of all data.
  std::vector<at::Tensor> snapshot() const {
    std::vector<at::Tensor> copies;
    for (const auto& parameter : owned_) copies.push_back(parameter->data.detach().clone());
    return copies;
  }

 private:
  std::vector<std::unique_ptr<tensor::Parameter>> owned_;
};

}  // namespace pharos::optim

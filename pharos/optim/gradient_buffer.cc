#include "pharos/optim/gradient_buffer.h"

#include <ATen/Functions.h>

#include "pharos/base/error.h"

namespace pharos::optim {

GradientBuffer::GradientBuffer(std::vector<tensor::Parameter*> parameters, std::int64_t bucket_size)
    : GradientBuffer(parameters, make_layout(parameters, {.bucket_size = bucket_size})) {}

GradientBuffer::GradientBuffer(std::vector<tensor::Parameter*> parameters, FlatLayout layout)
    : parameters_(std::move(parameters)), layout_(std::move(layout)) {
  const at::Device device = device_of(parameters_);
  for (const tensor::Parameter* parameter : parameters_) {
    PHAROS_CHECK(!parameter->data.is_meta() && parameter->data.device() == device,
                 parameter->name + " is not materialised on the device of the other parameters");
    num_elements_ += parameter->data.numel();
  }
  flat_ = at::zeros({layout_.num_elements}, at::TensorOptions().dtype(at::kFloat).device(device));
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    parameters_[index]->main_grad = flat_view(flat_, layout_, index);
  }
}

void GradientBuffer::zero() { flat_.zero_(); }

at::Tensor GradientBuffer::bucket_view(const Bucket& bucket) const {
  return flat_.narrow(0, bucket.begin, bucket.end - bucket.begin);
}

std::vector<std::string> GradientBuffer::non_finite_parameters() const {
  std::vector<std::string> names;
  for (const tensor::Parameter* parameter : parameters_) {
    if (!at::isfinite(parameter->main_grad).all().item<bool>()) names.push_back(parameter->name);
  }
  return names;
}

}  // namespace pharos::optim

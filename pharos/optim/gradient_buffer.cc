#include "pharos/optim/gradient_buffer.h"

#include <ATen/Functions.h>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

std::int64_t aligned(std::int64_t num_elements) {
  return (num_elements + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
}

}  // namespace

at::Tensor flat_view(const at::Tensor& flat, const FlatLayout& layout, std::size_t index) {
  const auto& shape = layout.shapes.at(index);
  return flat.narrow(0, layout.offsets[index], c10::multiply_integers(shape)).view(shape);
}

GradientBuffer::GradientBuffer(std::vector<tensor::Parameter*> parameters, std::int64_t bucket_size)
    : parameters_(std::move(parameters)) {
  PHAROS_CHECK(!parameters_.empty(), "a gradient buffer needs parameters");
  PHAROS_CHECK(bucket_size >= 0, "bucket size " + std::to_string(bucket_size));
  const at::Tensor& first = parameters_.front()->data;
  const at::Device device = first.defined() ? first.device() : at::Device(at::kMeta);
  layout_.offsets.resize(parameters_.size());
  layout_.shapes.resize(parameters_.size());
  Bucket bucket;
  for (std::size_t index = parameters_.size(); index-- > 0;) {
    const at::Tensor& data = parameters_[index]->data;
    PHAROS_CHECK(data.defined() && !data.is_meta() && data.device() == device,
                 parameters_[index]->name + " is not materialised on the device of the other parameters");
    layout_.offsets[index] = bucket.end;
    layout_.shapes[index] = data.sizes().vec();
    bucket.parameters.push_back(index);
    bucket.end += aligned(data.numel());
    num_elements_ += data.numel();
    if (index > 0 && (bucket_size == 0 || bucket.end - bucket.begin < bucket_size)) continue;
    const std::int64_t next = bucket.end;
    buckets_.push_back(std::move(bucket));
    bucket = {.begin = next, .end = next, .parameters = {}};
  }
  layout_.num_elements = bucket.end;
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

// For the tests of routers: fixtures, and routers whose logits are their input.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pharos/base/file.h"
#include "pharos/nn/moe/router.h"

namespace pharos::nn {

/// Tensors of a safetensors file of F32, I64 and U8.
class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : content_(base::read_file(std::filesystem::path(PHAROS_TEST_DATA) / name)) {
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content_.data(), sizeof header_bytes);
    header_ = nlohmann::json::parse(content_.substr(8, header_bytes));
    data_ = 8 + header_bytes;
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  at::Tensor operator[](const std::string& name) const {
    const nlohmann::json& entry = header_.at(name);
    const std::string type = entry["dtype"];
    const at::ScalarType dtype = type == "F32" ? at::kFloat : type == "I64" ? at::kLong : at::kByte;
    at::Tensor tensor = at::empty(entry["shape"].get<std::vector<std::int64_t>>(), dtype);
    std::memcpy(tensor.mutable_data_ptr(), content_.data() + data_ + entry["data_offsets"][0].get<std::size_t>(),
                tensor.nbytes());
    return tensor;
  }

 private:
  std::string content_;
  nlohmann::json header_;
  std::size_t data_;
};

/// What was asked of Megatron, and its losses; tensors are in megatron/moe.safetensors.
inline std::vector<nlohmann::json> megatron_cases() {
  const std::string text = base::read_file(std::filesystem::path(PHAROS_TEST_DATA) / "megatron/moe.json");
  return nlohmann::json::parse(text)["cases"].get<std::vector<nlohmann::json>>();
}

inline tensor::Parameter parameter_of(const at::Tensor& values) {
  tensor::Parameter parameter;
  parameter.data = values.detach().clone().requires_grad_();
  parameter.main_grad = at::zeros_like(values, values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return parameter;
}

inline at::Tensor leaf_of(const at::Tensor& values) { return values.detach().clone().requires_grad_(); }

inline void backward(const at::Tensor& output, const at::Tensor& grad) { torch::autograd::backward({output}, {grad}); }

/// Largest difference relative to the largest value.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return 1e30;
  if (a.numel() == 0) return 0;
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

/// Its logits are its input: the weight is the identity.
inline Router identity_router(RouterOptions options, at::ScalarType dtype = at::kFloat) {
  Router router;
  router.weight = parameter_of(at::eye(options.num_experts, dtype));
  options.name = "router";
  router.options = std::move(options);
  return router;
}

inline ForwardContext training_context() {
  ForwardContext context;
  context.training = true;
  context.seed = 5;
  context.step = 3;
  return context;
}

/// values [tokens, topk] at the chosen experts, else 0: [tokens, experts]. Dropped choices (-1) are left out.
inline at::Tensor dense(const at::Tensor& experts, const at::Tensor& values, std::int64_t num_experts) {
  const at::Tensor kept = experts >= 0;
  return at::zeros({experts.size(0), num_experts}, values.options())
      .scatter_add(1, experts.clamp_min(0), values * kept.to(values.scalar_type()));
}

/// 1 where an expert is chosen: uint8 [tokens, experts].
inline at::Tensor map_of(const at::Tensor& experts, std::int64_t num_experts) {
  return dense(experts, at::ones_like(experts), num_experts).to(at::kByte);
}

}  // namespace pharos::nn

// A made-up model for the tests of data parallelism: parameters whose microbatch gradients are known numbers.
#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <memory>
#include <string>
#include <vector>

#include "pharos/optim/parallel/data_parallel.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// Numbers drawn from a generator of their own: ranks are threads.
inline at::Tensor seeded_normal(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed), at::TensorOptions().dtype(at::kFloat));
}

class TestModel {
 public:
  /// Odd shapes, some smaller than a rank's part of anything; the first parameter is used twice.
  explicit TestModel(at::ScalarType dtype) {
    add("embedding.word_embeddings.weight", {11, 7}, dtype);
    add("decoder.layers.0.norm.weight", {7}, dtype);
    add("decoder.layers.0.fc.weight", {33, 17}, dtype);
    add("decoder.layers.0.fc.bias", {5}, dtype);
    add("decoder.layers.1.norm.weight", {1}, dtype);
    add("decoder.layers.1.fc.weight", {65, 3}, dtype);
    add("decoder.final_layernorm.weight", {2}, dtype);
    parameters_[0]->num_uses = 2;
  }

  std::vector<tensor::Parameter*> all() const {
    std::vector<tensor::Parameter*> pointers;
    for (const auto& parameter : parameters_) pointers.push_back(parameter.get());
    return pointers;
  }
  tensor::Parameter& operator[](std::size_t index) const { return *parameters_[index]; }
  std::size_t size() const { return parameters_.size(); }

  /// Values as layers would see them.
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> copies;
    for (const auto& parameter : parameters_) copies.push_back(tensor::value(*parameter).detach().clone());
    return copies;
  }

  /// One of the gradients: multiples of 1/8 so small that all sums of a test are exact even in bf16.
  at::Tensor gradient(std::size_t parameter, int step, int microbatch, std::int64_t rank, int use) const {
    const std::uint64_t seed =
        ((((parameter * 100 + static_cast<std::uint64_t>(step)) * 10 + static_cast<std::uint64_t>(microbatch)) * 10 +
          static_cast<std::uint64_t>(rank)) *
             4 +
         static_cast<std::uint64_t>(use));
    return seeded_normal(parameters_[parameter]->data.sizes(), seed).mul(3).round().clamp(-10, 10).div(8);
  }

  /// Uses every value on the way there and back, the first one at both ends, and adds the gradients of `rank`.
  void run_microbatch(int step, int microbatch, std::int64_t rank) const {
    for (const auto& parameter : parameters_) tensor::value(*parameter);
    use_and_add(0, step, microbatch, rank, 1);
    for (std::size_t index = parameters_.size(); index-- > 0;) use_and_add(index, step, microbatch, rank, 0);
  }

 private:
  void add(const std::string& name, const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
    auto parameter = std::make_unique<tensor::Parameter>();
    parameter->name = name;
    parameter->data = seeded_normal(shape, 1000 + parameters_.size()).to(dtype).requires_grad_();
    parameter->weight_decay = shape.size() > 1;
    parameters_.push_back(std::move(parameter));
  }

  void use_and_add(std::size_t index, int step, int microbatch, std::int64_t rank, int use) const {
    const at::NoGradGuard no_grad;
    tensor::Parameter& parameter = *parameters_[index];
    tensor::value(parameter);
    tensor::add_gradient(parameter,
                         [&](at::Tensor main_grad) { main_grad.add_(gradient(index, step, microbatch, rank, use)); });
  }

  std::vector<std::unique_ptr<tensor::Parameter>> parameters_;
};

}  // namespace pharos::optim

#include "pharos/cli/doctor/benchmarks.h"

#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include <functional>

#include "pharos/base/clock.h"

namespace pharos::cli {
namespace {

constexpr int kRepeats = 5;

std::vector<at::Device> devices_of(const std::string& device, std::optional<std::int64_t> local_rank) {
  if (device != "cuda") return {at::kCPU};
  if (local_rank) return {{at::kCUDA, static_cast<at::DeviceIndex>(*local_rank)}};
  std::vector<at::Device> devices;
  const auto count = at::detail::getCUDAHooks().getNumGPUs();
  for (int index = 0; index < count; ++index) devices.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(index));
  return devices;
}

/// Until all work on the tensor's device is done: a value of it comes to the host.
void wait_for(const at::Tensor& tensor) { static_cast<void>(tensor.flatten()[0].item<double>()); }

/// `amount` per second, in units of 10^9, of each repeat; one before them is not counted.
std::vector<double> measure(double amount, const std::function<at::Tensor()>& work) {
  wait_for(work());
  std::vector<double> values;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const std::int64_t begin_ns = base::monotonic_ns();
    wait_for(work());
    values.push_back(amount / static_cast<double>(base::monotonic_ns() - begin_ns));
  }
  return values;
}

}  // namespace

std::string find_device(std::int64_t local_rank) {
  if (!at::globalContext().hasCUDA()) return "cpu";
  return at::detail::getCUDAHooks().getNumGPUs() > local_rank ? "cuda" : "cpu";
}

std::vector<launch::Measurement> measure_gemm(const std::string& device, std::optional<std::int64_t> local_rank) {
  std::vector<launch::Measurement> measurements;
  for (const at::Device& one : devices_of(device, local_rank)) {
    const std::int64_t size = one.is_cuda() ? 8192 : 1024;
    const auto options = at::TensorOptions(one).dtype(one.is_cuda() ? at::kBFloat16 : at::kFloat);
    const at::Tensor left = at::ones({size, size}, options), right = at::ones({size, size}, options);
    at::Tensor product = at::empty({size, size}, options);
    const int products = one.is_cuda() ? 10 : 1;  // a GPU's start of a kernel is not what is measured
    const double operations = 2.0 * static_cast<double>(size * size * size) * products;
    measurements.push_back({.device = one.str(), .values = measure(operations, [&] {
                                                   for (int i = 0; i < products; ++i) at::mm_out(product, left, right);
                                                   return product;
                                                 })});
  }
  return measurements;
}

std::vector<launch::Measurement> measure_bandwidth(const std::string& device, std::optional<std::int64_t> local_rank) {
  std::vector<launch::Measurement> measurements;
  for (const at::Device& one : devices_of(device, local_rank)) {
    const std::int64_t num_bytes = std::int64_t{one.is_cuda() ? 1024 : 64} << 20;
    const at::Tensor source = at::ones({num_bytes / 4}, at::TensorOptions(one).dtype(at::kFloat));
    const at::Tensor target = at::empty_like(source);
    const double moved = 2.0 * static_cast<double>(num_bytes);  // read and written
    measurements.push_back({.device = one.str(), .values = measure(moved, [&] {
                                                   target.copy_(source);
                                                   return target;
                                                 })});
  }
  return measurements;
}

std::string libtorch_version() { return TORCH_VERSION; }

}  // namespace pharos::cli

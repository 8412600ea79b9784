#include "pharos/tensor/host_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <new>

namespace pharos::tensor {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register

class HostAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (num_bytes == 0) return {nullptr, nullptr, &std::free, device};
    // The whole block stands in the context, the tensor begins at the first aligned byte in it.
    void* block = std::malloc(num_bytes + kAlignment - 1);
    if (block == nullptr) throw std::bad_alloc();
    const auto address = (reinterpret_cast<std::uintptr_t>(block) + kAlignment - 1) / kAlignment * kAlignment;
    return {reinterpret_cast<void*>(address), block, &std::free, device};
  }

  void copy_data(void* destination, const void* source, std::size_t num_bytes) const override {
    default_copy_data(destination, source, num_bytes);
  }
};

}  // namespace

void install_host_allocator() {
  static HostAllocator allocator;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace pharos::tensor

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

/// Block of malloc that aligned memory lies in; stands right before it.
void*& block_of(void* aligned) { return static_cast<void**>(aligned)[-1]; }

void release(void* aligned) {
  if (aligned != nullptr) std::free(block_of(aligned));
}

class HostAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (num_bytes == 0) return {nullptr, nullptr, &release, device};
    void* block = std::malloc(num_bytes + kAlignment + sizeof(void*));
    if (block == nullptr) throw std::bad_alloc();
    const auto first = reinterpret_cast<std::uintptr_t>(block) + sizeof(void*);
    void* aligned = reinterpret_cast<void*>((first + kAlignment - 1) / kAlignment * kAlignment);
    block_of(aligned) = block;
    return {aligned, aligned, &release, device};
  }

  // Data and context are the same pointer, as libraries that take raw memory from ATen (oneDNN) want it.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

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

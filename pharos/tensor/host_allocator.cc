#include "pharos/tensor/host_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace pharos::tensor {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector register

/// Kernels of bf16 products, one for each shape and up to a megabyte each: more than the shapes of a dense model.
constexpr const char* kKeptKernels = "32";

/// Block of malloc that aligned memory lies in; stands right before it.
void*& block_of(void* aligned) { return static_cast<void**>(aligned)[-1]; }

std::atomic<std::int64_t> allocated{0};

void release(void* aligned) {
  if (aligned == nullptr) return;
  void* block = block_of(aligned);
  allocated.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(block)), std::memory_order_relaxed);
  std::free(block);
}

class HostAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t num_bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (num_bytes == 0) return {nullptr, nullptr, &release, device};
    void* block = std::malloc(num_bytes + kAlignment + sizeof(void*));
    if (block == nullptr) throw std::bad_alloc();
    allocated.fetch_add(static_cast<std::int64_t>(malloc_usable_size(block)), std::memory_order_relaxed);
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
  // What the caches of oneDNN, and of ATen's layer above it, hold: read when the first product is made.
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", kKeptKernels, /*overwrite=*/0);
  setenv("LRU_CACHE_CAPACITY", kKeptKernels, /*overwrite=*/0);
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

std::int64_t allocated_host_bytes() { return allocated.load(std::memory_order_relaxed); }

std::int64_t allocated_bytes(const c10::Device& device) {
  if (device.is_cpu()) return allocated_host_bytes();
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex{0};
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(index);
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

}  // namespace pharos::tensor

#include "pharos/tensor/host_allocator.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include "pharos/base/memory.h"

namespace pharos::tensor {
namespace {

// Memory checkers keep freed blocks aside on purpose.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMallocReusesBlocks = false;
#else
constexpr bool kMallocReusesBlocks = true;
#endif

TEST(HostAllocator, GivesAlignedMemoryThatIsUsedAgain) {
  install_host_allocator();
  for (const std::int64_t size : {1, 63, 64, 1000, 4 << 20}) {
    const void* first = nullptr;
    {
      const at::Tensor tensor = at::empty({size}, at::kByte);
      first = tensor.data_ptr();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0U);
    }
    if (kMallocReusesBlocks) {
      EXPECT_EQ(at::empty({size}, at::kByte).data_ptr(), first) << size << " bytes";
    }
  }
  EXPECT_EQ(at::empty({0}).numel(), 0);
  void* raw = c10::GetCPUAllocator()->raw_allocate(100);
  ASSERT_NE(raw, nullptr);
  c10::GetCPUAllocator()->raw_deallocate(raw);
}

// The matrix product in bf16 takes its memory from ATen's allocator in raw form.
TEST(HostAllocator, ServesLibrariesBelowATen) {
  install_host_allocator();
  const at::Tensor a = at::ones({64, 64}, at::kBFloat16);
  EXPECT_EQ(at::mm(a, a)[0][0].item<float>(), 64);
}

// Of 300 shapes of a product 32 kernels are kept, not all: a kernel has about a megabyte.
TEST(HostAllocator, BoundsTheKernelsThatAreKept) {
  install_host_allocator();
  const at::Tensor rows = at::ones({400, 256}, at::kBFloat16), matrix = at::ones({256, 256}, at::kBFloat16);
  const auto multiply = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t count = first; count < last; ++count) at::mm(rows.narrow(0, 0, count), matrix);
  };
  multiply(40, 80);
  const std::int64_t before = base::process_memory().resident_bytes;
  multiply(80, 380);
  const std::int64_t more = base::process_memory().resident_bytes - before;
  if (kMallocReusesBlocks) {
    EXPECT_LT(more, 20 << 20);
  }
}

}  // namespace
}  // namespace pharos::tensor

// Memory of tensors on the CPU.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace pharos::tensor {

/// Makes every later CPU tensor of this process take its memory from malloc in blocks that the next step can use again,
/// and tells malloc to keep what is freed. Activations of a step are freed and taken again in every step, in the same
/// sizes: handing them back to the kernel in between costs page faults (4-6 % of a step). ATen's own allocator asks for
/// aligned memory, and glibc before 2.38 never fits an aligned request into the block that the same request left
/// behind, so its heap grows a fifth beyond what is alive, or more. Call it once, before tensors are made and threads
/// started.
///
/// It also bounds what else grows: oneDNN compiles a kernel for every shape of a bf16 product and keeps 1024 of them,
/// and the rows of experts have other shapes in every step. The environment's ONEDNN_PRIMITIVE_CACHE_CAPACITY and
/// LRU_CACHE_CAPACITY take precedence.
void install_host_allocator();

/// Bytes of CPU tensors that are alive, as malloc counts them; 0 without install_host_allocator().
std::int64_t allocated_host_bytes();

/// The same for `device`, which for CUDA means its caching allocator.
std::int64_t allocated_bytes(const c10::Device& device);

}  // namespace pharos::tensor

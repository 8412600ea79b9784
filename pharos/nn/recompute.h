// Activation recomputation (Chen et al. 2016): keep a function's inputs, run it again in the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace pharos::nn {

using Recomputed = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// True while a function runs again in the backward pass: what counts passes must not count it twice.
bool is_recomputing();

/// function(inputs), keeping no intermediate. The function must give the same result both times; randomness here is by
/// counter, so dropout does. Gradients reach the inputs and, through main_grad, the parameters used inside.
at::Tensor recompute(const Recomputed& function, const std::vector<at::Tensor>& inputs);

}  // namespace pharos::nn

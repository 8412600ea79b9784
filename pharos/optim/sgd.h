// Stochastic gradient descent with momentum (Sutskever et al. 2013, heavy-ball form as in PyTorch).
#pragma once

#include "pharos/optim/update_rule.h"

namespace pharos::optim {

/// g += wd·p;  b = momentum·b + g;  p -= lr·b. State: "momentum_buffer" (b).
class Sgd : public UpdateRule {
 public:
  Sgd(const std::vector<at::Tensor>& values, const UpdateTarget& target, double momentum);
  void for_each_state(const StateVisitor& visit) override;

 private:
  void update_group(std::size_t group, const UpdateInput& input, const at::Tensor& divisor) override;

  double momentum_;
  State momentum_buffer_;
  std::vector<std::vector<at::Tensor>> buffers_;  ///< [group]
};

}  // namespace pharos::optim

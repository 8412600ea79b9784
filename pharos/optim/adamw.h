// Adam with decoupled weight decay (Loshchilov & Hutter 2019), or with L2 regularisation (Kingma & Ba 2015).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "pharos/optim/update_rule.h"

namespace pharos::optim {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  bool decoupled_weight_decay = true;  ///< off: weight_decay · p is added to the gradient
};

/// Update t, counted from 1, with gradient g:
///   decoupled: p *= 1 - lr·wd                  L2 form: g += wd·p
///   m = b1·m + (1-b1)·g,  v = b2·v + (1-b2)·g²
///   p -= lr/(1-b1^t) · m / (sqrt(v)/sqrt(1-b2^t) + eps)
/// t counts the updates since the parameter began to be trained. A parameter whose gradient is zero still decays.
/// States: "exp_avg" (m) and "exp_avg_sq" (v).
class AdamW : public UpdateRule {
 public:
  AdamW(const std::vector<at::Tensor>& values, const UpdateTarget& target, const AdamWOptions& options);
  void for_each_state(const StateVisitor& visit) override;
  void set_num_updates(std::int64_t num_updates, const std::vector<std::int64_t>& started_at) override;

 private:
  void count_steps();
  void update_group(std::size_t group, const UpdateInput& input, const at::Tensor& divisor) override;

  /// Arguments of the fused kernel for one group.
  struct Lists {
    std::vector<at::Tensor> exp_avg, exp_avg_sq, steps;
  };
  AdamWOptions options_;
  State exp_avg_;
  State exp_avg_sq_;
  std::vector<std::int64_t> started_at_;      ///< [slot]
  std::map<std::int64_t, at::Tensor> steps_;  ///< [started at] fp32 scalar, shared by the slots that started then
  std::vector<Lists> lists_;                  ///< [group]
};

}  // namespace pharos::optim

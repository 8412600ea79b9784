// What every optimizer has: values, gradients, moments beside them, and one update per step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "pharos/optim/gradient_buffer.h"

namespace pharos::optim {

struct UpdateInput {
  double learning_rate = 0;
  double weight_decay = 0;      ///< for tensors that decay; the others have 0
  double gradient_divisor = 1;  ///< the update uses gradient / divisor: loss scale and clipping in one
};

/// index: of the parameter in the order given; tensor: fp32 with the parameter's shape, writable in place.
using StateVisitor = std::function<void(std::size_t index, std::string_view name, const at::Tensor& tensor)>;

class UpdateRule {
 public:
  /// `values` fp32, one per parameter of `gradients`, updated in place; states are flat buffers in its layout.
  UpdateRule(std::vector<at::Tensor> values, const GradientBuffer& gradients);
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// One update. The gradients may be left divided.
  void update(const UpdateInput& input);
  virtual void for_each_state(const StateVisitor& visit) = 0;

  /// Updates done so far; the t of Adam's bias corrections.
  std::int64_t num_updates() const { return num_updates_; }
  void set_num_updates(std::int64_t num_updates) { num_updates_ = num_updates; }

 protected:
  /// Parameters that share a weight decay.
  struct Group {
    bool decays;
    std::vector<std::size_t> indices;
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
  };
  /// A zeroed flat fp32 buffer, and its views per parameter.
  struct State {
    explicit State(const GradientBuffer& gradients);
    std::vector<at::Tensor> views_of(const Group& group) const;
    at::Tensor flat;
    std::vector<at::Tensor> views;  ///< [parameter]
  };
  const std::vector<Group>& groups() const { return groups_; }

  /// `divisor`: undefined when 1, else fp32 scalar on the values' device. num_updates() counts the one at hand.
  virtual void update_group(std::size_t group, const UpdateInput& input, double weight_decay,
                            const at::Tensor& divisor) = 0;

 private:
  std::vector<Group> groups_;
  std::int64_t num_updates_ = 0;
};

}  // namespace pharos::optim

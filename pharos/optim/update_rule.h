// What every optimizer has: values, gradients, moments beside them, and one update per step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::optim {

struct UpdateInput {
  double learning_rate = 0;
  double weight_decay = 0;      ///< for tensors that decay; the others have 0
  double gradient_divisor = 1;  ///< the update uses gradient / divisor: loss scale and clipping in one
};

/// index: of the parameter in the order given. tensor: fp32, writable in place, either of the parameter's shape, or a
/// fragment: one-dimensional, the elements of the flattened parameter from first_element on that this rank holds, which
/// may be none.
using StateVisitor =
    std::function<void(std::size_t index, std::string_view name, const at::Tensor& tensor, std::int64_t first_element)>;

/// A parameter, or the fragment of one that this rank updates. `value` and `gradient` have the parameter's shape, or
/// one dimension in case of a fragment, which may be empty.
struct UpdateSlot {
  std::size_t parameter = 0;
  std::string name;
  std::string piece = {};          ///< of the parameter's pieces the first; its name where it has none
  std::int64_t first_element = 0;  ///< of the flattened parameter
  bool decays = true;
  double learning_rate_scale = 1;
  at::Tensor value;         ///< in the compute type
  at::Tensor gradient;      ///< fp32
  std::int64_t offset = 0;  ///< in flat buffers of UpdateTarget::num_elements
};

/// Everything one rank updates, in forward order.
struct UpdateTarget {
  std::vector<UpdateSlot> slots;
  std::int64_t num_elements = 0;  ///< of a flat buffer that has a place for every slot
  at::Device device = at::kCPU;

  at::Tensor zeroed_flat() const;
  /// The place of `slot` in a flat buffer, shaped like its value.
  at::Tensor view_of(const at::Tensor& flat, const UpdateSlot& slot) const;
};

class UpdateRule {
 public:
  /// `values` fp32, one per slot of `target`, updated in place; states are flat buffers in its layout.
  UpdateRule(const std::vector<at::Tensor>& values, const UpdateTarget& target);
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  /// One update. The gradients may be left divided.
  void update(const UpdateInput& input);
  virtual void for_each_state(const StateVisitor& visit) = 0;

  /// Updates done so far.
  std::int64_t num_updates() const { return num_updates_; }
  /// started_at: [slot] updates that had been done when the slot's first one was due.
  virtual void set_num_updates(std::int64_t num_updates, const std::vector<std::int64_t>& /*started_at*/) {
    num_updates_ = num_updates;
  }

 protected:
  /// Slots that share weight decay and learning rate.
  struct Group {
    bool decays;
    double learning_rate_scale;
    std::vector<std::size_t> indices;  ///< of slots
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
  };
  /// A zeroed flat fp32 buffer, and its views per slot.
  struct State {
    explicit State(const UpdateTarget& target);
    std::vector<at::Tensor> views_of(const Group& group) const;
    at::Tensor flat;
    std::vector<at::Tensor> views;  ///< [slot]
  };
  const std::vector<Group>& groups() const { return groups_; }
  void visit_slot(const StateVisitor& visit, std::size_t slot, std::string_view name, const at::Tensor& tensor) const;

  /// `input`: learning rate and weight decay are those of the group. `divisor`: undefined when 1, else fp32 scalar on
  /// the values' device. num_updates() counts the one at hand.
  virtual void update_group(std::size_t group, const UpdateInput& input, const at::Tensor& divisor) = 0;

 private:
  struct Place {
    std::size_t parameter;
    std::int64_t first_element;
  };
  std::vector<Place> places_;  ///< [slot]
  std::vector<Group> groups_;
  std::int64_t num_updates_ = 0;
};

}  // namespace pharos::optim

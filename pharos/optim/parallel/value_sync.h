// Values of sharded parameters: which part this rank holds and updates, and how the others' parts come here.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "pharos/comm/group.h"
#include "pharos/optim/flat_layout.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// Over which ranks the values of a bucket are divided; null: this rank has all of them.
struct ValueGroups {
  comm::Group* data = nullptr;
  comm::Group* expert = nullptr;  ///< for buckets of experts
  comm::Group* of(const Bucket& bucket) const { return bucket.is_expert ? expert : data; }
};

class ValueSync {
 public:
  virtual ~ValueSync() = default;
  /// When it returns, the parameter's data holds its values.
  virtual void before_use(std::size_t parameter) = 0;
  /// The held values have changed on every rank; data follows. Every rank must call it.
  virtual void values_changed() = 0;
  /// Waits for what is under way and gives back what is gathered on demand only.
  virtual void settle() = 0;
  /// In the parameters' type, one per held range.
  virtual const std::vector<at::Tensor>& held() const = 0;
  /// Memory of values on this rank: shards and what is gathered at the moment.
  virtual std::int64_t resident_bytes() const = 0;
};

/// One flat buffer of all values, of which `data` of every parameter is a view, for ever; each rank updates its part of
/// every bucket, and the buckets are gathered in place: strategies optim and optim_grads.
class FlatValueSync : public ValueSync {
 public:
  /// Moves the parameters' materialised data into the buffer. `overlaps`: a gather is waited for where a value of its
  /// bucket is used first, else at once.
  FlatValueSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                const std::vector<HeldRange>& held_ranges, ValueGroups groups, bool overlaps);
  void before_use(std::size_t parameter) override { works_[layout_.bucket_of[parameter]].wait(); }
  void values_changed() override;
  void settle() override;
  const std::vector<at::Tensor>& held() const override { return held_; }
  std::int64_t resident_bytes() const override;

 private:
  const FlatLayout& layout_;
  ValueGroups groups_;
  bool overlaps_;
  at::Tensor flat_;
  std::vector<at::Tensor> held_;
  std::vector<comm::Work> works_;  ///< [bucket]
};

/// Each rank holds its shard only; the values of a bucket (a unit, usually a layer) are gathered when one of them is
/// used and given back when another unit is used. Data of a parameter whose unit is not here is a meta tensor. With
/// `prefetches` the unit that followed last time is gathered meanwhile: at most two units are here. Units of experts
/// take turns among themselves, beside those of other parameters; where this rank holds all of them they stay. Every
/// rank must use the same units in the same order, experts that got no token included. Strategy optim_grads_params.
class UnitValueSync : public ValueSync {
 public:
  /// Takes this rank's part of the parameters' materialised data and gives the rest back, parameter by parameter.
  UnitValueSync(std::vector<tensor::Parameter*> parameters, const FlatLayout& layout,
                const std::vector<HeldRange>& held_ranges, ValueGroups groups, bool prefetches);
  void before_use(std::size_t parameter) override {
    const std::size_t unit = layout_.bucket_of[parameter];
    Turn& turn = turns_[layout_.buckets[unit].is_expert];
    if (unit != turn.current && groups_.of(layout_.buckets[unit]) != nullptr) enter(turn, unit);
  }
  void values_changed() override { settle(); }
  void settle() override;
  const std::vector<at::Tensor>& held() const override { return held_; }
  std::int64_t resident_bytes() const override;

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  struct Unit {
    at::Tensor buffer;  ///< undefined: not here
    comm::Work work;
  };
  /// The units of one kind, and which of them are here.
  struct Turn {
    std::vector<std::size_t> units;  ///< in the order of buckets
    std::size_t previous = kNone, current = kNone, ahead = kNone;
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> followed_by = {};  ///< (previous, current) -> next
  };
  void enter(Turn& turn, std::size_t unit);
  void start_gather(std::size_t unit);
  /// `flat` begins with the values of the unit's bucket.
  void bind(std::size_t unit, const at::Tensor& flat);
  void release(std::size_t unit);
  /// The unit that probably follows turn.current, kNone if there is none.
  static std::size_t successor(const Turn& turn);

  std::vector<tensor::Parameter*> parameters_;
  const FlatLayout& layout_;
  ValueGroups groups_;
  bool prefetches_;
  at::Tensor shard_;
  std::vector<at::Tensor> held_;    ///< views of shard_, one per unit
  std::vector<at::Tensor> absent_;  ///< [parameter] meta tensors
  std::vector<Unit> units_;
  std::array<Turn, 2> turns_;  ///< [is expert]
};

}  // namespace pharos::optim

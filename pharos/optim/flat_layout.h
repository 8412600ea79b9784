// Where the parameters of a rank lie in one flat buffer: gradients, main parameters, moments and, where they are
// gathered, values are all laid out alike. A data-parallel reduction works on buckets, which are contiguous.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// 256 bytes of fp32: whole cache lines, and what vector loads and collectives like best.
inline constexpr std::int64_t kFlatAlignment = 64;

/// A contiguous range of the buffer whose gradients are reduced together.
struct Bucket {
  std::int64_t begin = 0;               ///< elements, a multiple of kFlatAlignment
  std::int64_t end = 0;                 ///< likewise, past the last
  std::vector<std::size_t> parameters;  ///< indices, in the order in which their gradients become ready
  bool is_expert = false;               ///< all of them are experts (tensor::is_expert), or none
};

/// Places of tensors in a flat buffer, in elements. Each begins at a multiple of kFlatAlignment. Buckets are in the
/// order in which they become complete in a backward pass: that of their last parameters.
struct FlatLayout {
  std::vector<std::int64_t> offsets;              ///< [parameter]
  std::vector<std::vector<std::int64_t>> shapes;  ///< [parameter]
  std::vector<std::size_t> bucket_of;             ///< [parameter]
  std::vector<Bucket> buckets;                    ///< without gaps
  std::int64_t num_elements = 0;                  ///< of the buffer, padding included

  std::int64_t num_elements_of(std::size_t parameter) const;
};

struct LayoutOptions {
  std::int64_t bucket_size = 0;  ///< a bucket is closed once it holds that many elements; 0: never
  bool along_layers = false;     ///< one bucket per "decoder.layers.N."; one before the first layer, one after the last
  std::vector<std::size_t> chunks = {};  ///< parameters with which a model chunk begins: no bucket has some of two
  std::int64_t num_shards = 1;           ///< a bucket's length is a multiple of kFlatAlignment × num_shards
  std::int64_t num_expert_shards = 1;    ///< the same for buckets of experts
};

/// Lays out `parameters` (given in forward order, with data of their local shapes) last first, as their gradients
/// become ready. A parameter with a Parameter::tie has a bucket of its own: the two ranks divide it alike. Experts and
/// other parameters, which are reduced over different ranks, are never in one bucket.
FlatLayout make_layout(const std::vector<tensor::Parameter*>& parameters, const LayoutOptions& options);

/// That of the first parameter; the CPU where there is none (a pipeline rank may hold no weights).
at::Device device_of(const std::vector<tensor::Parameter*>& parameters);

/// View of parameter `index` in `flat` [layout.num_elements].
at::Tensor flat_view(const at::Tensor& flat, const FlatLayout& layout, std::size_t index);

/// A contiguous range of the layout that a rank holds, at `offset` of a buffer of all it holds.
struct HeldRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
  std::int64_t length() const { return end - begin; }
};

/// All of the layout, in one range.
std::vector<HeldRange> whole_range(const FlatLayout& layout);
/// Which of several equal parts of a bucket.
struct Shard {
  std::int64_t count = 1;
  std::int64_t index = 0;
};
/// A part of every bucket, one range per bucket; of buckets of experts the part `expert`.
std::vector<HeldRange> shard_ranges(const FlatLayout& layout, Shard shard, Shard expert = {});
/// Elements in all ranges.
std::int64_t num_elements(const std::vector<HeldRange>& ranges);

/// Elements [first_element, first_element + num_elements) of a flattened parameter, and where a rank holds them.
struct Fragment {
  std::size_t parameter = 0;
  std::int64_t first_element = 0;
  std::int64_t num_elements = 0;
  std::size_t range = 0;             ///< index of the HeldRange
  std::int64_t offset_in_range = 0;  ///< elements from its begin
};

/// What `ranges` (those of whole_range() or shard_ranges()) hold of elements [first, first + count) of a parameter.
/// A parameter lies in one bucket, hence in one range at most; nullopt-like result: num_elements == 0.
Fragment fragment_of(const FlatLayout& layout, const std::vector<HeldRange>& ranges, std::size_t parameter,
                     std::int64_t first, std::int64_t count);

}  // namespace pharos::optim

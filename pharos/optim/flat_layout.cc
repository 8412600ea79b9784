#include "pharos/optim/flat_layout.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::optim {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// "decoder.layers.3." of "decoder.layers.3.mlp.linear_fc1.weight"; empty outside of layers.
std::string_view layer_prefix(std::string_view name) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!name.starts_with(kLayers)) return {};
  const auto dot = name.find('.', kLayers.size());
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot + 1);
}

bool is_tied(const tensor::Parameter& parameter) { return parameter.tie != tensor::Parameter::Tie::kNone; }

/// The buckets that fill at the same time, one of each kind; until they are closed offsets count from their begin.
class OpenBuckets {
 public:
  OpenBuckets(FlatLayout& layout, const LayoutOptions& options)
      : layout_(layout), num_shards_{options.num_shards, options.num_expert_shards} {}

  void add(std::size_t index, const tensor::Parameter& parameter) {
    PHAROS_CHECK(parameter.data.defined(), parameter.name + " has no shape yet");
    Bucket& bucket = open_[tensor::is_expert(parameter)];
    layout_.offsets[index] = bucket.end;
    layout_.shapes[index] = parameter.data.sizes().vec();
    bucket.parameters.push_back(index);
    bucket.end += round_up(parameter.data.numel(), kFlatAlignment);
  }

  std::int64_t length(bool is_expert) const { return open_[is_expert].end; }

  void close(bool is_expert) {
    Bucket bucket = std::exchange(open_[is_expert], {});
    if (bucket.parameters.empty()) return;
    const std::int64_t begin = layout_.num_elements;
    for (const std::size_t index : bucket.parameters) {
      layout_.offsets[index] += begin;
      layout_.bucket_of[index] = layout_.buckets.size();
    }
    bucket.begin = begin;
    bucket.end = layout_.num_elements = begin + round_up(bucket.end, kFlatAlignment * num_shards_[is_expert]);
    bucket.is_expert = is_expert;
    layout_.buckets.push_back(std::move(bucket));
  }

  void close_all() {
    const auto last = [&](bool is_expert) {
      return open_[is_expert].parameters.empty() ? std::size_t{0} : open_[is_expert].parameters.back();
    };
    const bool experts_first = last(true) > last(false);
    close(experts_first);
    close(!experts_first);
  }

 private:
  FlatLayout& layout_;
  std::array<std::int64_t, 2> num_shards_;
  std::array<Bucket, 2> open_;  ///< [is expert]
};

}  // namespace

std::int64_t FlatLayout::num_elements_of(std::size_t parameter) const {
  return c10::multiply_integers(shapes.at(parameter));
}

FlatLayout make_layout(const std::vector<tensor::Parameter*>& parameters, const LayoutOptions& options) {
  PHAROS_CHECK(options.bucket_size >= 0, "bucket size " + std::to_string(options.bucket_size));
  PHAROS_CHECK(options.num_shards > 0 && options.num_expert_shards > 0, "a number of shards is not positive");
  FlatLayout layout;
  layout.offsets.resize(parameters.size());
  layout.shapes.resize(parameters.size());
  layout.bucket_of.resize(parameters.size());
  OpenBuckets open(layout, options);
  for (std::size_t index = parameters.size(); index-- > 0;) {
    const tensor::Parameter& parameter = *parameters[index];
    open.add(index, parameter);
    const bool is_expert = tensor::is_expert(parameter);
    const bool ends_layer =
        options.along_layers && index > 0 && layer_prefix(parameter.name) != layer_prefix(parameters[index - 1]->name);
    const bool ends_chunk = std::find(options.chunks.begin(), options.chunks.end(), index) != options.chunks.end();
    if (index == 0 || ends_layer || ends_chunk || is_tied(*parameters[index - 1])) {
      open.close_all();
    } else if (is_tied(parameter) || (options.bucket_size > 0 && open.length(is_expert) >= options.bucket_size)) {
      open.close(is_expert);
    }
  }
  return layout;
}

at::Device device_of(const std::vector<tensor::Parameter*>& parameters) {
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front()->data.device();
}

at::Tensor flat_view(const at::Tensor& flat, const FlatLayout& layout, std::size_t index) {
  return flat.narrow(0, layout.offsets.at(index), layout.num_elements_of(index)).view(layout.shapes[index]);
}

std::vector<HeldRange> whole_range(const FlatLayout& layout) { return {{0, layout.num_elements, 0}}; }

std::vector<HeldRange> shard_ranges(const FlatLayout& layout, Shard shard, Shard expert) {
  std::vector<HeldRange> ranges;
  std::int64_t offset = 0;
  for (const Bucket& bucket : layout.buckets) {
    const Shard& own = bucket.is_expert ? expert : shard;
    const std::int64_t length = (bucket.end - bucket.begin) / own.count;
    const std::int64_t begin = bucket.begin + own.index * length;
    ranges.push_back({begin, begin + length, offset});
    offset += length;
  }
  return ranges;
}

std::int64_t num_elements(const std::vector<HeldRange>& ranges) {
  return ranges.empty() ? 0 : ranges.back().offset + ranges.back().length();
}

Fragment fragment_of(const FlatLayout& layout, const std::vector<HeldRange>& ranges, std::size_t parameter,
                     std::int64_t first, std::int64_t count) {
  const std::size_t index = ranges.size() == 1 ? 0 : layout.bucket_of.at(parameter);
  const HeldRange& range = ranges.at(index);
  const std::int64_t offset = layout.offsets.at(parameter);
  const std::int64_t begin = std::max(offset + first, range.begin);
  const std::int64_t end = std::min(offset + first + count, range.end);
  if (begin >= end) return {.parameter = parameter, .range = index};
  return {parameter, begin - offset, end - begin, index, begin - range.begin};
}

}  // namespace pharos::optim

#include "pharos/optim/flat_layout.h"

#include <algorithm>
#include <string>
#include <string_view>

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

}  // namespace

std::int64_t FlatLayout::num_elements_of(std::size_t parameter) const {
  return c10::multiply_integers(shapes.at(parameter));
}

FlatLayout make_layout(const std::vector<tensor::Parameter*>& parameters, const LayoutOptions& options) {
  PHAROS_CHECK(options.bucket_size >= 0, "bucket size " + std::to_string(options.bucket_size));
  PHAROS_CHECK(options.num_shards > 0, "number of shards " + std::to_string(options.num_shards));
  FlatLayout layout;
  layout.offsets.resize(parameters.size());
  layout.shapes.resize(parameters.size());
  layout.bucket_of.resize(parameters.size());
  Bucket bucket;
  for (std::size_t index = parameters.size(); index-- > 0;) {
    const at::Tensor& data = parameters[index]->data;
    PHAROS_CHECK(data.defined(), parameters[index]->name + " has no shape yet");
    layout.offsets[index] = bucket.end;
    layout.shapes[index] = data.sizes().vec();
    layout.bucket_of[index] = layout.buckets.size();
    bucket.parameters.push_back(index);
    bucket.end += round_up(data.numel(), kFlatAlignment);
    const bool is_full = options.bucket_size > 0 && bucket.end - bucket.begin >= options.bucket_size;
    const bool ends_layer = options.along_layers && index > 0 &&
                            layer_prefix(parameters[index]->name) != layer_prefix(parameters[index - 1]->name);
    const bool ends_chunk = std::find(options.chunks.begin(), options.chunks.end(), index) != options.chunks.end();
    const bool is_alone = is_tied(*parameters[index]) || (index > 0 && is_tied(*parameters[index - 1]));
    if (index > 0 && !is_full && !ends_layer && !ends_chunk && !is_alone) continue;
    bucket.end = bucket.begin + round_up(bucket.end - bucket.begin, kFlatAlignment * options.num_shards);
    const std::int64_t next = bucket.end;
    layout.buckets.push_back(std::move(bucket));
    bucket = {.begin = next, .end = next, .parameters = {}};
  }
  layout.num_elements = bucket.end;
  return layout;
}

at::Device device_of(const std::vector<tensor::Parameter*>& parameters) {
  return parameters.empty() ? at::Device(at::kCPU) : parameters.front()->data.device();
}

at::Tensor flat_view(const at::Tensor& flat, const FlatLayout& layout, std::size_t index) {
  return flat.narrow(0, layout.offsets.at(index), layout.num_elements_of(index)).view(layout.shapes[index]);
}

std::vector<HeldRange> whole_range(const FlatLayout& layout) { return {{0, layout.num_elements, 0}}; }

std::vector<HeldRange> shard_ranges(const FlatLayout& layout, std::int64_t num_shards, std::int64_t shard) {
  std::vector<HeldRange> ranges;
  std::int64_t offset = 0;
  for (const Bucket& bucket : layout.buckets) {
    const std::int64_t length = (bucket.end - bucket.begin) / num_shards;
    const std::int64_t begin = bucket.begin + shard * length;
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

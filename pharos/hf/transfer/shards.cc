#include "pharos/hf/transfer/shards.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>

#include "pharos/base/file.h"
#include "pharos/checkpoint/safetensors_index.h"

namespace pharos::hf {
namespace {

constexpr const char* kSingleFile = "model.safetensors";

/// One file. Wide types come first, so that every tensor is aligned.
void write_file(std::vector<const OutputTensor*> tensors, const std::filesystem::path& path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const OutputTensor* a, const OutputTensor* b) {
    return checkpoint::element_size_bytes(a->type) > checkpoint::element_size_bytes(b->type);
  });
  std::vector<checkpoint::TensorEntry> entries;
  for (const OutputTensor* tensor : tensors) entries.push_back({tensor->name, tensor->type, tensor->shape});
  checkpoint::SafetensorsWriter writer(path, std::move(entries), {{"format", "pt"}});
  for (const OutputTensor* tensor : tensors) {
    const at::Tensor values =
        at::empty(tensor->shape, at::TensorOptions().dtype(checkpoint::scalar_type(tensor->type)));
    tensor->fill(values);
    writer.write(values);
  }
  writer.close();
}

}  // namespace

ShardMap divide_into_shards(const std::vector<OutputTensor>& tensors, std::size_t max_shard_bytes) {
  std::vector<std::size_t> shard_of;
  std::size_t num_shards = 0, filled = 0;
  for (const OutputTensor& tensor : tensors) {
    if (num_shards == 0 || (filled > 0 && tensor.size_bytes() > max_shard_bytes - std::min(filled, max_shard_bytes))) {
      ++num_shards;
      filled = 0;
    }
    filled += tensor.size_bytes();
    shard_of.push_back(num_shards);
  }
  ShardMap shards;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    shards[tensors[i].name] =
        num_shards == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", shard_of[i], num_shards);
  }
  return shards;
}

ShardMap divide_like(const std::vector<OutputTensor>& tensors, const ShardMap& like) {
  std::string last;
  for (const auto& [name, file] : like) last = std::max(last, file);
  ShardMap shards;
  for (const OutputTensor& tensor : tensors) {
    const auto found = like.find(tensor.name);
    shards[tensor.name] = found == like.end() ? last : found->second;
  }
  return shards;
}

WrittenShards write_shards(const std::vector<OutputTensor>& tensors, const ShardMap& shards,
                           const std::filesystem::path& folder) {
  std::map<std::string, std::vector<const OutputTensor*>> files;
  WrittenShards written;
  for (const OutputTensor& tensor : tensors) {
    files[shards.at(tensor.name)].push_back(&tensor);
    written.size_bytes += tensor.size_bytes();
  }
  for (const auto& [file, contents] : files) write_file(contents, folder / file);
  written.num_files = files.size();
  if (files.size() > 1 || !files.contains(kSingleFile)) {
    base::write_file_atomically(folder / "model.safetensors.index.json",
                                checkpoint::render_safetensors_index(shards, written.size_bytes));
  }
  return written;
}

}  // namespace pharos::hf

// Writing the tensors of a model into safetensors files of a limited size, one tensor at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pharos/checkpoint/safetensors.h"

namespace pharos::hf {

/// A tensor to be written. fill() is called once, when its turn has come, with an empty tensor of type and shape.
struct OutputTensor {
  std::string name;
  checkpoint::ElementType type;
  std::vector<std::int64_t> shape;
  std::function<void(const at::Tensor& values)> fill;

  std::size_t size_bytes() const { return *checkpoint::tensor_size_bytes(type, shape); }
};

/// Name of a tensor -> name of its file.
using ShardMap = std::map<std::string, std::string>;

/// In the order given, each file as full as max_shard_bytes allows (a larger tensor has a file of its own), called
/// model-00001-of-00003.safetensors, or model.safetensors when there is only one.
ShardMap divide_into_shards(const std::vector<OutputTensor>& tensors, std::size_t max_shard_bytes);

/// As `like` has it; tensors that it lacks go into its last file.
ShardMap divide_like(const std::vector<OutputTensor>& tensors, const ShardMap& like);

struct WrittenShards {
  std::size_t num_files = 0;
  std::size_t size_bytes = 0;  ///< of all tensors
};

/// Writes the files into `folder`, and model.safetensors.index.json if there are several or the only one is not called
/// model.safetensors.
WrittenShards write_shards(const std::vector<OutputTensor>& tensors, const ShardMap& shards,
                           const std::filesystem::path& folder);

}  // namespace pharos::hf

// Temporary folders and small models for the tests of this module.
#pragma once

#include <ATen/Functions.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "pharos/checkpoint/checkpoint.h"
#include "pharos/comm/mesh.h"
#include "pharos/tensor/parameter.h"

namespace pharos::checkpoint::test {

/// A folder of this process that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("pharos_checkpoint_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Adds 1 to the byte at `offset` (from the end when negative).
inline void flip_byte(const std::filesystem::path& path, std::int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path));
  const std::int64_t place = offset < 0 ? size + offset : offset;
  file.seekg(place);
  const char value = static_cast<char>(file.get());
  file.seekp(place);
  file.put(static_cast<char>(value + 1));
}

/// Parameters of every kind on one rank: a padded vocabulary, a fused q|k|v with replicated KV heads, a row-parallel
/// matrix, a norm; with two kinds of state.
class SmallModel {
 public:
  SmallModel(const comm::Mesh& mesh, std::int64_t rank, std::uint64_t seed, std::int64_t padded_rows = 12) {
    using comm::MeshDim;
    const auto normal = tensor::Init::normal(1);
    const int replicas = mesh.size(MeshDim::kTensor) == 4 ? 2 : 1;
    add({{"embedding.word_embeddings.weight", {10, 4}, {{0, MeshDim::kTensor}}, normal, padded_rows}});
    add({{"q.weight", {8, 4}, {{0, MeshDim::kTensor}}, normal},
         {"k.weight", {4, 4}, {{0, MeshDim::kTensor, replicas}}, normal},
         {"v.weight", {4, 4}, {{0, MeshDim::kTensor, replicas}}, normal}});
    add({{"linear_proj.weight", {4, 8}, {{1, MeshDim::kTensor}}, normal}});
    add({{"norm.weight", {4}, {}, normal}});
    for (const char* kind : {"exp_avg", "exp_avg_sq"}) contents.state.push_back({kind, {}});
    for (const auto& parameter : parameters_) {
      tensor::declare(*parameter, at::kFloat, mesh, rank);
      fill(*parameter, seed, mesh, rank);
      contents.parameters.push_back(parameter.get());
      // Moments drawn like weights of other seeds, so that they too are the same in every layout.
      for (std::size_t kind = 0; kind < 2; ++kind) {
        tensor::Parameter moment = *parameter;
        fill(moment, seed + 100 * (kind + 1), mesh, rank);
        contents.state[kind].tensors.push_back(moment.data.detach());
      }
    }
  }

  Contents contents;

 private:
  void add(std::vector<tensor::Piece> pieces) {
    parameters_.push_back(std::make_unique<tensor::Parameter>());
    parameters_.back()->name = pieces.front().name;
    parameters_.back()->pieces = std::move(pieces);
  }
  static void fill(tensor::Parameter& parameter, std::uint64_t seed, const comm::Mesh& mesh, std::int64_t rank) {
    tensor::materialize(parameter, at::kCPU, seed, mesh, rank);
  }
  std::vector<std::unique_ptr<tensor::Parameter>> parameters_;
};

/// All tensors of the two are bitwise equal.
inline bool same(const Contents& a, const Contents& b) {
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    if (!at::equal(a.parameters[i]->data, b.parameters[i]->data)) return false;
    for (std::size_t kind = 0; kind < a.state.size(); ++kind) {
      if (!at::equal(a.state[kind].tensors[i], b.state[kind].tensors[i])) return false;
    }
  }
  return true;
}

}  // namespace pharos::checkpoint::test

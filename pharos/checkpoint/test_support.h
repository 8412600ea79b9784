// Temporary folders and small models for the tests of this module.
#pragma once

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
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

/// Whether a model is held whole or as data-parallel strategies hold it: in equal ranges of all its elements.
enum class Sharding : std::uint8_t { kWhole, kState, kStateAndWeights };

/// Parameters of every kind on one rank: a padded vocabulary, a fused q|k|v with replicated KV heads, a row-parallel
/// matrix, a norm; with two kinds of state.
class SmallModel {
 public:
  SmallModel(const comm::Mesh& mesh, std::int64_t rank, std::uint64_t seed, std::int64_t padded_rows = 12)
      : mesh_(mesh), rank_(rank) {
    using comm::MeshDim;
    const auto normal = tensor::Init::normal(1);
    const int replicas = mesh.size(MeshDim::kTensor) == 4 ? 2 : 1;
    add({{"embedding.word_embeddings.weight", {10, 4}, {{0, MeshDim::kTensor}}, normal, padded_rows}});
    add({{"q.weight", {8, 4}, {{0, MeshDim::kTensor}}, normal},
         {"k.weight", {4, 4}, {{0, MeshDim::kTensor, replicas}}, normal},
         {"v.weight", {4, 4}, {{0, MeshDim::kTensor, replicas}}, normal}});
    add({{"linear_proj.weight", {4, 8}, {{1, MeshDim::kTensor}}, normal}});
    add({{"norm.weight", {4}, {}, normal}});
    fill(seed);
  }

  tensor::Parameter& parameter(std::size_t index) const { return *parameters_[index]; }

  Contents contents;

 protected:
  void add(std::vector<tensor::Piece> pieces, int axis = 0) {
    parameters_.push_back(std::make_unique<tensor::Parameter>());
    parameters_.back()->name = pieces.front().name;
    parameters_.back()->pieces = std::move(pieces);
    parameters_.back()->axis = axis;
  }

  /// State is drawn like weights of other seeds, so that it too is the same in every layout.
  void fill(std::uint64_t seed) {
    contents.clear();
    const char* const kinds[] = {"", "exp_avg", "exp_avg_sq"};
    for (std::size_t kind = 0; kind < 3; ++kind) {
      for (const auto& parameter : parameters_) {
        tensor::declare(*parameter, at::kFloat, mesh_, rank_);
        tensor::Parameter drawn = *parameter;
        tensor::materialize(drawn, at::kCPU, seed + 100 * kind, mesh_, rank_);
        if (kind == 0) parameter->data = drawn.data;
        contents.push_back({parameter.get(), kinds[kind], drawn.data.detach()});
      }
    }
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->data = contents[i].values;
  }

  const comm::Mesh& mesh_;
  std::int64_t rank_;
  std::vector<std::unique_ptr<tensor::Parameter>> parameters_;
};

/// Also tensors of three axes, pieces side by side on axis 1, odd lengths. A pipeline rank holds an equal share of the
/// parameters, and if `tied` the last one a copy of the words as well.
class OddModel : public SmallModel {
 public:
  OddModel(const comm::Mesh& mesh, std::int64_t rank, std::uint64_t seed, Sharding sharding,
           std::int64_t padded_rows = 12, bool tied = true)
      : SmallModel(mesh, rank, seed, padded_rows) {
    using comm::MeshDim;
    const auto normal = tensor::Init::normal(1);
    add({{"cube.weight", {3, 4, 5}, {{1, MeshDim::kTensor}}, normal}});
    add({{"gate.weight", {3, 4}, {{1, MeshDim::kTensor}}, normal},
         {"up.weight", {3, 8}, {{1, MeshDim::kTensor}}, normal}},
        1);
    add({{"bias", {7}, {}, normal}});
    add({{"scale", {1}, {}, normal}});
    if (mesh.size(MeshDim::kPipeline) > 1) keep_stage(tied);
    fill(seed);
    if (sharding != Sharding::kWhole) shard(sharding == Sharding::kStateAndWeights);
  }

 private:
  void keep_stage(bool tied) {
    using Tie = tensor::Parameter::Tie;
    const auto stages = static_cast<std::size_t>(mesh_.size(comm::MeshDim::kPipeline));
    const auto stage = static_cast<std::size_t>(mesh_.coordinate(rank_, comm::MeshDim::kPipeline));
    const std::size_t count = parameters_.size();
    if (tied) parameters_.front()->tie = Tie::kOriginal;
    auto copy = std::make_unique<tensor::Parameter>(*parameters_.front());
    copy->tie = Tie::kCopy;
    parameters_.erase(parameters_.begin() + static_cast<std::ptrdiff_t>(count * (stage + 1) / stages),
                      parameters_.end());
    parameters_.erase(parameters_.begin(), parameters_.begin() + static_cast<std::ptrdiff_t>(count * stage / stages));
    if (tied && stage + 1 == stages) parameters_.push_back(std::move(copy));
  }

  /// This rank's share of the elements of all parameters, one behind the other.
  void shard(bool with_weights) {
    const std::int64_t ranks = mesh_.size(comm::MeshDim::kData), mine = mesh_.coordinate(rank_, comm::MeshDim::kData);
    std::int64_t total = 0, start = 0;
    for (const auto& parameter : parameters_) total += parameter->data.numel();
    const std::int64_t length = (total + ranks - 1) / ranks;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::int64_t numel = parameters_[i]->data.numel();
      const std::int64_t begin = std::clamp<std::int64_t>(mine * length - start, 0, numel);
      const std::int64_t end = std::clamp<std::int64_t>((mine + 1) * length - start, 0, numel);
      for (std::size_t kind = with_weights ? 0 : 1; kind < 3; ++kind) {
        Held& held = contents[kind * parameters_.size() + i];
        held.values = held.values.flatten().narrow(0, begin, end - begin).clone();
        held.first_element = begin;
        held.is_fragment = true;
      }
      if (with_weights) tensor::declare(*parameters_[i], at::kFloat, mesh_, rank_);
      start += numel;
    }
  }
};

/// All values of the two are bitwise equal.
inline bool same(const Contents& a, const Contents& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Held& left, const Held& right) {
    return left.kind == right.kind && left.first_element == right.first_element && at::equal(left.values, right.values);
  });
}

/// SaveOptions::all_agree of ranks that are threads. Of no use after the first disagreement.
class Agreement {
 public:
  explicit Agreement(std::int64_t ranks) : barrier_(static_cast<std::ptrdiff_t>(ranks)) {}
  bool operator()(bool ok) {
    if (!ok) failed_ = true;
    barrier_.arrive_and_wait();
    const bool agreed = !failed_;
    barrier_.arrive_and_wait();  // until all have looked
    return agreed;
  }

 private:
  std::barrier<> barrier_;
  std::atomic<bool> failed_ = false;
};

/// Runs `work` of every rank, each on a thread of its own.
inline void run_ranks(std::int64_t ranks, const std::function<void(std::int64_t rank)>& work) {
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&work, rank] { work(rank); });
  for (auto& thread : threads) thread.join();
}

}  // namespace pharos::checkpoint::test

// Reading the tensors of a checkpoint part by part, whatever files and layout they were saved in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/safetensors.h"

namespace pharos::checkpoint {

/// UserError: the checkpoint in `folder` is damaged, with every problem.
[[noreturn]] void throw_damaged(const std::filesystem::path& folder, const std::vector<std::string>& problems);

/// The files of one checkpoint, each opened on first use and checked: its size, and with_checksums its checksum.
class StoredTensors {
 public:
  /// `manifest` must outlive this.
  StoredTensors(const Manifest& manifest, std::filesystem::path folder, bool with_checksums)
      : manifest_(manifest), folder_(std::move(folder)), with_checksums_(with_checksums) {}

  /// Fills `target` (of any type that a copy converts to) with the part of its shape at `offset`, which must lie inside
  /// the tensor. UserError for a file that is damaged or disagrees with the manifest.
  void copy_to(const StoredTensor& stored, const std::vector<std::int64_t>& offset, const at::Tensor& target);

  /// UserError unless the file of `slice` holds it as the manifest describes it.
  void check(const StoredTensor& stored, const StoredSlice& slice) { entry_of(stored, slice); }

 private:
  const SafetensorsFile& open(const std::string& name);
  const std::string& entry_of(const StoredTensor& stored, const StoredSlice& slice);

  const Manifest& manifest_;
  std::filesystem::path folder_;
  bool with_checksums_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace pharos::checkpoint

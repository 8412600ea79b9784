// Tokens on disk in Megatron's .bin/.idx pair, mapped into memory.
#pragma once

#include <cstdint>
#include <string>

#include "pharos/base/file.h"
#include "pharos/data/indexed/index_format.h"
#include "pharos/data/sequence_source.h"

namespace pharos::data {

/// PREFIX.bin and PREFIX.idx, read only. Opening checks the whole index against the size of .bin (parse_index); tokens
/// are not touched. Any damage is a base::UserError with file and byte offset.
class IndexedDataset : public SequenceSource {
 public:
  explicit IndexedDataset(std::string prefix);

  const std::string& prefix() const { return prefix_; }
  const IndexView& index() const { return view_; }
  std::int64_t num_documents() const { return view_.num_documents(); }
  std::int64_t num_tokens() const { return view_.num_tokens(); }
  std::int64_t size_bytes() const {
    return static_cast<std::int64_t>(bin_file_.size_bytes() + index_file_.size_bytes());
  }

  std::int64_t num_sequences() const override { return view_.num_sequences(); }
  std::int64_t length(std::int64_t sequence) const override { return view_.length(sequence); }
  /// Floating-point datasets must hold whole numbers, else UserError.
  void read(std::int64_t sequence, std::int64_t first, std::int64_t count, std::int64_t* tokens) const override;
  std::string where(std::int64_t sequence, std::int64_t token) const override;

 private:
  std::string prefix_;
  base::MappedFile index_file_;
  base::MappedFile bin_file_;
  IndexView view_;
};

/// PREFIX from "PREFIX", "PREFIX.bin" or "PREFIX.idx".
std::string dataset_prefix(const std::string& path);

}  // namespace pharos::data

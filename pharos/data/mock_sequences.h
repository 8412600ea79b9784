// Made-up data for trying things out: Megatron's mock low-level dataset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pharos/data/sequence_source.h"

namespace pharos::data {

/// 100,000 sequences whose lengths are numpy's default_rng(0).integers(1, 4096, dtype=int32). A sequence of length l is
/// 1, 2, …, l - 1 (modulo the vocabulary) and then the end of document.
class MockSequences : public SequenceSource {
 public:
  MockSequences(std::int64_t vocab_size, std::int64_t end_of_document);

  std::int64_t num_sequences() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t sequence) const override { return lengths_[static_cast<std::size_t>(sequence)]; }
  void read(std::int64_t sequence, std::int64_t first, std::int64_t count, std::int64_t* tokens) const override;
  std::string where(std::int64_t sequence, std::int64_t token) const override;

 private:
  std::int64_t vocab_size_;
  std::int64_t end_of_document_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace pharos::data

// The .idx file of Megatron's indexed datasets (little endian): what its bytes mean and whether they can be trusted.
//
//   0  magic "MMIDIDX\0\0"   9 u64 version 1   17 u8 dtype   18 u64 S sequences   26 u64 D document boundaries
//   34 i32[S] tokens of each sequence   34+4S i64[S] its first byte in .bin   34+12S i64[D] first sequence of each
//   document
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pharos::data {

/// Element types of a .bin file, with the codes stored in .idx.
enum class TokenType : std::uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8,
};

std::size_t size_bytes(TokenType type);
/// numpy's name: "uint16".
const char* name(TokenType type);
/// The smallest type Megatron's tools use for a vocabulary: uint16 below 65,500 ids, int32 from there on.
TokenType token_type_for_vocabulary(std::int64_t vocab_size);

inline constexpr std::size_t kIndexHeaderBytes = 34;

/// A checked .idx file. It points into the bytes it was parsed from and does not own them.
class IndexView {
 public:
  TokenType token_type() const { return token_type_; }
  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t num_documents() const { return num_boundaries_ - 1; }
  std::int64_t num_tokens() const { return num_tokens_; }

  /// Tokens of sequence `i`, 0 <= i < num_sequences().
  std::int64_t length(std::int64_t i) const;
  /// Byte of .bin at which sequence `i` starts.
  std::int64_t offset_bytes(std::int64_t i) const;
  /// First sequence of document `i`; for i == num_documents() the number of sequences.
  std::int64_t document_start(std::int64_t i) const;

 private:
  friend IndexView parse_index(std::span<const std::byte>, std::uint64_t, const std::string&, const std::string&);

  TokenType token_type_ = TokenType::kUint8;
  std::int64_t num_sequences_ = 0;
  std::int64_t num_boundaries_ = 1;
  std::int64_t num_tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* boundaries_ = nullptr;
};

/// Checks every field of an .idx file against itself and against the size of its .bin file: sequences must lie back to
/// back from byte 0 to the end of .bin, document boundaries must rise from 0 to the number of sequences. Throws
/// base::UserError with file and byte offset at the first fault. The paths are only for messages. Linear in the size of
/// the index.
IndexView parse_index(std::span<const std::byte> index, std::uint64_t bin_size_bytes, const std::string& index_path,
                      const std::string& bin_path);

}  // namespace pharos::data

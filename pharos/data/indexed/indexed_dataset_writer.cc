#include "pharos/data/indexed/indexed_dataset_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::int64_t kMaximumSequenceTokens = std::numeric_limits<std::int32_t>::max();

template <typename Value>
bool append(std::int64_t token, std::byte* target) {
  if constexpr (!std::is_floating_point_v<Value>) {
    if (!std::in_range<Value>(token)) return false;
  }
  const auto value = static_cast<Value>(token);
  std::memcpy(target, &value, sizeof value);
  return true;
}

/// Stores one token; false if the type cannot hold it.
bool append(TokenType type, std::int64_t token, std::byte* target) {
  switch (type) {
    case TokenType::kUint8:
      return append<std::uint8_t>(token, target);
    case TokenType::kInt8:
      return append<std::int8_t>(token, target);
    case TokenType::kInt16:
      return append<std::int16_t>(token, target);
    case TokenType::kInt32:
      return append<std::int32_t>(token, target);
    case TokenType::kInt64:
      return append<std::int64_t>(token, target);
    case TokenType::kFloat64:
      return append<double>(token, target);
    case TokenType::kFloat32:
      return append<float>(token, target);
    case TokenType::kUint16:
      return append<std::uint16_t>(token, target);
  }
  return false;
}

template <typename Value>
void write_values(base::OutputFile& file, const Value* values, std::size_t count) {
  file.write(values, count * sizeof(Value));
}

/// Keeps other writers of a folder out until the end of this object. Where a folder cannot be locked nobody is kept
/// out.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder)
      : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ >= 0) ::flock(descriptor_, LOCK_EX);
  }
  ~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)), type_(type) {
  const std::string suffix = ".tmp." + std::to_string(::getpid());
  temporary_bin_ = prefix_ + ".bin" + suffix;
  temporary_index_ = prefix_ + ".idx" + suffix;
  const std::filesystem::path folder = std::filesystem::path(prefix_).parent_path();
  if (!folder.empty()) base::make_directories(folder);
  bin_ = std::make_unique<base::OutputFile>(temporary_bin_);
  buffer_.reserve(kBufferBytes + 8);
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  ::unlink(temporary_bin_.c_str());
  ::unlink(temporary_index_.c_str());
}

void IndexedDatasetWriter::flush() {
  bin_->write(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void IndexedDatasetWriter::add_tokens(std::span<const std::int64_t> tokens) {
  const std::size_t width = size_bytes(type_);
  for (const std::int64_t token : tokens) {
    if (tokens_in_sequence_ == kMaximumSequenceTokens) end_sequence();
    const std::size_t at = buffer_.size();
    buffer_.resize(at + width);
    if (!append(type_, token, buffer_.data() + at)) {
      throw base::UserError({.what = "Token " + std::to_string(token) + " does not fit into " + name(type_) + ".",
                             .where = prefix_ + ".bin, token " + std::to_string(num_tokens_),
                             .fix = "Choose a wider element type, for example int32."});
    }
    ++tokens_in_sequence_;
    ++num_tokens_;
    if (buffer_.size() >= kBufferBytes) flush();
  }
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.push_back(static_cast<std::int32_t>(tokens_in_sequence_));
  tokens_in_sequence_ = 0;
}

void IndexedDatasetWriter::end_document() {
  if (tokens_in_sequence_ > 0) end_sequence();
  document_starts_.push_back(num_sequences());
}

void IndexedDatasetWriter::write_index(const std::string& path) const {
  base::OutputFile file(path);
  const std::uint64_t version = 1;
  const auto code = static_cast<std::uint8_t>(type_);
  const std::uint64_t counts[2] = {lengths_.size(), document_starts_.size()};
  file.write(std::string_view("MMIDIDX\0\0", 9));
  file.write(&version, sizeof version);
  file.write(&code, sizeof code);
  file.write(counts, sizeof counts);
  write_values(file, lengths_.data(), lengths_.size());

  const auto width = static_cast<std::int64_t>(size_bytes(type_));
  std::int64_t offset = 0;
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < lengths_.size(); ++i) {
    offsets.push_back(offset);
    offset += lengths_[i] * width;
    if (offsets.size() == kBufferBytes / 8 || i + 1 == lengths_.size()) {
      write_values(file, offsets.data(), offsets.size());
      offsets.clear();
    }
  }
  write_values(file, document_starts_.data(), document_starts_.size());
  file.close();
}

void IndexedDatasetWriter::finish() {
  PHAROS_CHECK(tokens_in_sequence_ == 0 && document_starts_.back() == num_sequences(),
               "the last document was not ended");
  flush();
  bin_->close();
  write_index(temporary_index_);
  output_bytes_ = static_cast<std::int64_t>(std::filesystem::file_size(temporary_bin_) +
                                            std::filesystem::file_size(temporary_index_));
  std::filesystem::path folder = std::filesystem::path(prefix_).parent_path();
  if (folder.empty()) folder = ".";
  const FolderLock lock(
      folder);  // two writers of one prefix: the pair is that of the later one, never one file of each
  // The old index goes first: at no moment does it stand beside the new tokens.
  ::unlink((prefix_ + ".idx").c_str());
  for (const auto& [from, to] :
       {std::pair(temporary_bin_, prefix_ + ".bin"), std::pair(temporary_index_, prefix_ + ".idx")}) {
    std::error_code error;
    std::filesystem::rename(from, to, error);
    if (error) {
      throw base::UserError({.what = "Cannot write '" + to + "': " + error.message() + ".",
                             .where = to,
                             .fix = "Check that the path is not a folder and may be written to."});
    }
  }
  base::sync_directory(folder);
}

}  // namespace pharos::data

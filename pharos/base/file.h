// Files that appear whole or not at all, and read-only maps of large ones. Every fault is a UserError that names the
// path and what the operating system said.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace pharos::base {

/// Whole content of a file.
std::string read_file(const std::filesystem::path& path);
/// The same; UserError for what is not a file but a pipe, for example, that would be waited for without end.
std::string read_regular_file(const std::filesystem::path& path);

/// Writes `content` to a temporary file beside `path`, syncs it and renames it: readers see the old file or the new
/// one.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);
/// A file that a user has named: like write_file_atomically(), but a link is followed, and what is no regular file (a
/// device, a pipe) is written to instead of being replaced. UserError.
void write_output_file(const std::filesystem::path& path, std::string_view content);

/// Makes a folder and its parents.
void make_directories(const std::filesystem::path& path);

/// Flushes a folder's entries to disk, so that a rename in it survives a power loss.
void sync_directory(const std::filesystem::path& path);

/// Output file with checked writes. close() flushes to disk; without it the destructor closes quietly and the file is
/// to be thrown away. Bytes are buffered by the kernel only.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const void* data, std::size_t num_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  std::size_t position_bytes() const { return position_bytes_; }
  /// fsync and close.
  void close();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::size_t position_bytes_ = 0;
};

/// Read-only memory map of a whole file. An empty file maps to no bytes.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  const std::byte* data() const { return data_; }
  std::size_t size_bytes() const { return size_bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace pharos::base

#include "pharos/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "pharos/base/error.h"

namespace pharos::base {
namespace {

[[noreturn]] void throw_file_error(const char* action, const std::filesystem::path& path, int error) {
  std::string fix = "Check the path and its permissions.";
  if (error == ENOENT) fix = "Check the spelling of the path; the file or its folder does not exist.";
  if (error == ENOSPC || error == EDQUOT) fix = "Free space on that disk or choose another folder.";
  if (error == EACCES || error == EPERM || error == EROFS)
    fix = "Choose a folder this user may write to, or change its permissions.";
  if (error == EISDIR) fix = "Give a file, not a folder.";
  throw UserError({.what = std::string("Cannot ") + action + " '" + path.string() + "': " + std::strerror(error) + ".",
                   .where = path.string(),
                   .fix = std::move(fix)});
}

struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

void check_regular(const std::filesystem::path& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  throw UserError({.what = "'" + path.string() + "' is not a regular file.",
                   .where = path.string(),
                   .why = "It is a pipe, a socket or a device, which cannot be read twice or out of order.",
                   .fix = "Put a file in its place."});
}

}  // namespace

std::string read_regular_file(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) check_regular(path, status.st_mode);
  return read_file(path);
}

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) throw_file_error("read", path, errno);
  std::string content;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(file.value, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error("read", path, errno);
    if (count == 0) return content;
    content.append(buffer, static_cast<std::size_t>(count));
  }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += ".tmp." + std::to_string(::getpid());
  try {
    OutputFile file(temporary);
    file.write(content);
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw_file_error("write", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_directory(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

void write_output_file(const std::filesystem::path& path, std::string_view content) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error) target = path;  // it does not exist yet
  if (error || std::filesystem::is_regular_file(target)) return write_file_atomically(target, content);
  OutputFile file(target);
  file.write(content);
}

void make_directories(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path)) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw_file_error("create folder", path, error.value());
}

void sync_directory(const std::filesystem::path& path) {
  const Descriptor folder{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (folder.value < 0) throw_file_error("open folder", path, errno);
  // Some file systems cannot sync a folder (EINVAL); the rename is then as durable as they make it.
  if (::fsync(folder.value) != 0 && errno != EINVAL) throw_file_error("sync folder", path, errno);
}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_file_error("write", path_, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, std::size_t num_bytes) {
  const char* next = static_cast<const char*>(data);
  std::size_t left = num_bytes;
  while (left > 0) {
    const ssize_t count = ::write(descriptor_, next, left);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_file_error("write", path_, errno);
    next += count;
    left -= static_cast<std::size_t>(count);
  }
  position_bytes_ += num_bytes;
}

void OutputFile::close() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) throw_file_error("sync", path_, errno);
  const int result = ::close(std::exchange(descriptor_, -1));
  if (result != 0) throw_file_error("close", path_, errno);
}

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // Not blocking: a pipe would wait for a writer before it can be told from a file.
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.value < 0) throw_file_error("read", path_, errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) throw_file_error("read", path_, errno);
  if (S_ISDIR(status.st_mode)) throw_file_error("read", path_, EISDIR);
  check_regular(path_, status.st_mode);
  size_bytes_ = static_cast<std::size_t>(status.st_size);
  if (size_bytes_ == 0) return;
  void* address = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, file.value, 0);
  if (address == MAP_FAILED) throw_file_error("map", path_, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

}  // namespace pharos::base

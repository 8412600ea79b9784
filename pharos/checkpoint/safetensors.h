// Reading and writing safetensors files with tensors: memory-mapped, slices without reading the rest, streaming writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pharos/base/file.h"
#include "pharos/checkpoint/safetensors_header.h"

namespace pharos::checkpoint {

at::ScalarType scalar_type(ElementType type);
/// InternalError for a type the format does not have.
ElementType element_type(at::ScalarType type);

/// One file, mapped. Tensors taken from it keep the map alive.
class SafetensorsFile {
 public:
  /// UserError when the file cannot be read or its header is not consistent.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const std::filesystem::path& path() const { return file_->path(); }

  /// The tensor `name` on the CPU, a view of the map where its alignment allows: must not be written to.
  /// UserError when the file has no such tensor.
  at::Tensor view(const std::string& name) const;

  /// Fills `target` (any device, strides and type that a copy converts to) with the part of its shape at `offset`. Only
  /// its pages are read, a few MiB at a time, and given back at once. UserError when the part is not inside.
  void copy_to(const std::string& name, const std::vector<std::int64_t>& offset, const at::Tensor& target) const;

  /// The same for elements that lie anyhow: element [i, j, …] of `target` is first + i strides[0] + j strides[1] + … of
  /// the stored tensor, flattened. All must lie in it.
  void copy_strided(const std::string& name, std::int64_t first, at::IntArrayRef strides, at::Tensor target) const;

  /// A copy of the part of `shape` at `offset`, read likewise.
  at::Tensor slice(const std::string& name, const std::vector<std::int64_t>& offset,
                   const std::vector<std::int64_t>& shape) const;

 private:
  const TensorEntry& entry(const std::string& name) const;
  void check_inside(const TensorEntry& found, const std::vector<std::int64_t>& offset, at::IntArrayRef shape) const;

  std::shared_ptr<base::MappedFile> file_;
  SafetensorsHeader header_;
};

/// Writes a file tensor by tensor; the header is written first, so names, types and shapes come first too.
class SafetensorsWriter {
 public:
  /// Only name, type and shape of `tensors` are read.
  SafetensorsWriter(std::filesystem::path path, std::vector<TensorEntry> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next tensor, in the order given; type and shape must match. Any device and strides.
  void write(const at::Tensor& tensor);
  /// The next elements of it, in row-major order: several calls make up the tensor.
  void write_part(const at::Tensor& values);

  /// Syncs and closes; every tensor must have been written.
  void close();

  std::size_t size_bytes() const { return file_.position_bytes(); }
  /// CRC-32 (zlib) of everything written.
  std::uint32_t crc32() const { return crc32_; }

 private:
  void put(const void* data, std::size_t num_bytes);

  base::OutputFile file_;
  std::vector<TensorEntry> tensors_;
  std::size_t next_ = 0;
  std::size_t part_bytes_ = 0;  ///< written of the next tensor
  std::uint32_t crc32_ = 0;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes one whole file beside `path`, syncs it and renames it.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// The tensors of a folder, however many files hold them: model.safetensors, else the files listed in
/// model.safetensors.index.json, else every *.safetensors.
class SafetensorsSet {
 public:
  /// `path`: a folder or one file. UserError naming every fault: no file, a listed file or tensor that is missing, a
  /// tensor in two files, a listed name that is not a plain file name.
  explicit SafetensorsSet(const std::filesystem::path& path);

  /// Names in ascending order.
  std::vector<std::string> names() const;
  /// The entry of that name, or null.
  const TensorEntry* find(const std::string& name) const;
  /// As SafetensorsFile::view.
  at::Tensor view(const std::string& name) const;
  /// As SafetensorsFile::copy_to.
  void copy_to(const std::string& name, const std::vector<std::int64_t>& offset, const at::Tensor& target) const;
  /// As SafetensorsFile::copy_strided.
  void copy_strided(const std::string& name, std::int64_t first, at::IntArrayRef strides,
                    const at::Tensor& target) const;
  /// As SafetensorsFile::slice.
  at::Tensor slice(const std::string& name, const std::vector<std::int64_t>& offset,
                   const std::vector<std::int64_t>& shape) const;
  const std::filesystem::path& path() const { return path_; }
  /// Name of the file that holds the tensor. UserError when none does.
  std::string file_name_of(const std::string& name) const;

 private:
  void open(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& index);
  void open_all(const std::vector<std::filesystem::path>& files);
  const SafetensorsFile& file_of(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::size_t> file_of_name_;
};

}  // namespace pharos::checkpoint

#include "pharos/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "pharos/base/error.h"
#include "pharos/base/pages.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/manifest.h"
#include "pharos/checkpoint/safetensors_index.h"

namespace pharos::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<ElementType, at::ScalarType> kScalarTypes[] = {
    {ElementType::kBool, at::kBool},
    {ElementType::kU8, at::kByte},
    {ElementType::kI8, at::kChar},
    {ElementType::kF8E4M3, at::kFloat8_e4m3fn},
    {ElementType::kF8E5M2, at::kFloat8_e5m2},
    {ElementType::kI16, at::kShort},
    {ElementType::kU16, at::kUInt16},
    {ElementType::kF16, at::kHalf},
    {ElementType::kBF16, at::kBFloat16},
    {ElementType::kI32, at::kInt},
    {ElementType::kU32, at::kUInt32},
    {ElementType::kF32, at::kFloat},
    {ElementType::kI64, at::kLong},
    {ElementType::kU64, at::kUInt64},
    {ElementType::kF64, at::kDouble},
};

std::span<const std::byte> bytes_of(const base::MappedFile& file) { return {file.data(), file.size_bytes()}; }

[[noreturn]] void throw_set_error(const fs::path& path, const std::vector<std::string>& problems) {
  throw base::UserError(
      {.what = "'" + path.string() + "' is not a complete set of safetensors files.",
       .where = path.string(),
       .why = base::join(problems, "; "),
       .fix = "Give a folder with model.safetensors, or with all files that model.safetensors.index.json lists."});
}

/// A part of a tensor in a mapped file, by its strides in bytes; not necessarily aligned.
struct MappedPart {
  const std::byte* start;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements
  ElementType type;

  /// From the first byte to the last, whatever lies between them.
  std::size_t extent_bytes() const {
    std::int64_t last = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) last += (shape[axis] - 1) * strides[axis];
    return static_cast<std::size_t>(last + 1) * element_size_bytes(type);
  }
  MappedPart rows(std::int64_t first, std::int64_t count) const {
    MappedPart part = *this;
    part.start += static_cast<std::size_t>(first * strides[0]) * element_size_bytes(type);
    part.shape[0] = count;
    return part;
  }
  MappedPart row(std::int64_t index) const {
    MappedPart part = rows(index, 1);
    part.shape.erase(part.shape.begin());
    part.strides.erase(part.strides.begin());
    return part;
  }
};

void copy_block(const MappedPart& part, const at::Tensor& target) {
  const std::size_t extent = part.extent_bytes();
  base::load_pages(part.start, extent);
  const auto options = at::TensorOptions().dtype(scalar_type(part.type));
  at::Tensor bytes;
  void* start = const_cast<std::byte*>(part.start);
  if (reinterpret_cast<std::uintptr_t>(start) % element_size_bytes(part.type) != 0) {
    bytes = at::empty({static_cast<std::int64_t>(extent)}, at::kByte);
    std::copy(part.start, part.start + extent, static_cast<std::byte*>(bytes.mutable_data_ptr()));
    start = bytes.mutable_data_ptr();
  }
  target.copy_(at::from_blob(start, part.shape, part.strides, options));
  base::release_pages(part.start, extent);
}

/// Axes in the order of the file, whatever the order of the target's.
void sort_axes(MappedPart& part, at::Tensor& target) {
  std::vector<std::int64_t> order(part.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return part.strides[static_cast<std::size_t>(a)] > part.strides[static_cast<std::size_t>(b)];
  });
  const MappedPart given = part;
  for (std::size_t axis = 0; axis < order.size(); ++axis) {
    part.shape[axis] = given.shape[static_cast<std::size_t>(order[axis])];
    part.strides[axis] = given.strides[static_cast<std::size_t>(order[axis])];
  }
  target = target.permute(order);
}

/// Block by block, each given back before the next is looked at.
void copy_blocks(const MappedPart& part, const at::Tensor& target) {
  if (target.numel() == 0) return;
  if (part.shape.empty() || part.extent_bytes() <= base::kMappedBlockBytes) return copy_block(part, target);
  const std::int64_t num_rows = part.shape[0];
  const std::size_t row_bytes = part.row(0).extent_bytes();
  if (row_bytes > base::kMappedBlockBytes) {
    for (std::int64_t i = 0; i < num_rows; ++i) copy_blocks(part.row(i), target.select(0, i));
    return;
  }
  const std::size_t stride_bytes = static_cast<std::size_t>(part.strides[0]) * element_size_bytes(part.type);
  const auto step = static_cast<std::int64_t>(std::max<std::size_t>(1, base::kMappedBlockBytes / stride_bytes));
  for (std::int64_t first = 0; first < num_rows; first += step) {
    const std::int64_t count = std::min(step, num_rows - first);
    if (first + count < num_rows) {
      const MappedPart next = part.rows(first + count, std::min(step, num_rows - first - count));
      base::prefetch_pages(next.start, next.extent_bytes());
    }
    copy_block(part.rows(first, count), target.narrow(0, first, count));
  }
}

}  // namespace

at::ScalarType scalar_type(ElementType type) {
  for (const auto& [element, scalar] : kScalarTypes) {
    if (element == type) return scalar;
  }
  throw base::InternalError(std::string("no tensor type for ") + element_type_name(type));
}

ElementType element_type(at::ScalarType type) {
  for (const auto& [element, scalar] : kScalarTypes) {
    if (scalar == type) return element;
  }
  throw base::InternalError(std::string("safetensors has no type for ") + c10::toString(type));
}

SafetensorsFile::SafetensorsFile(const fs::path& path)
    : file_(std::make_shared<base::MappedFile>(path)),
      header_(parse_safetensors_header(bytes_of(*file_), path.string())) {}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  if (const TensorEntry* found = header_.find(name)) return *found;
  throw base::UserError({.what = "'" + path().string() + "' holds no tensor '" + name + "'.",
                         .where = path().string(),
                         .fix = "Give the file that has it."});
}

at::Tensor SafetensorsFile::view(const std::string& name) const {
  const TensorEntry& found = entry(name);
  const auto options = at::TensorOptions().dtype(scalar_type(found.type));
  const std::byte* start = file_->data() + header_.data_offset_bytes + found.begin_bytes;
  if (found.begin_bytes == found.end_bytes) return at::empty(found.shape, options);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(start) % element_size_bytes(found.type);
  if (misaligned != 0) {
    at::Tensor copy = at::empty(found.shape, options);
    std::copy(start, start + (found.end_bytes - found.begin_bytes), static_cast<std::byte*>(copy.mutable_data_ptr()));
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(start), found.shape, [file = file_](void*) {}, options);
}

void SafetensorsFile::check_inside(const TensorEntry& found, const std::vector<std::int64_t>& offset,
                                   at::IntArrayRef shape) const {
  bool inside = offset.size() == found.shape.size() && shape.size() == found.shape.size();
  for (std::size_t axis = 0; inside && axis < shape.size(); ++axis) {
    inside = offset[axis] >= 0 && shape[axis] >= 0 && offset[axis] <= found.shape[axis] &&
             shape[axis] <= found.shape[axis] - offset[axis];
  }
  if (inside) return;
  throw base::UserError({.what = "'" + path().string() + "': tensor '" + found.name + "' of shape " +
                                 shape_text(found.shape) + " has no part of shape " + shape_text(shape.vec()) + " at " +
                                 shape_text(offset) + ".",
                         .where = path().string(),
                         .fix = "Give weights of the model's own shape."});
}

void SafetensorsFile::copy_to(const std::string& name, const std::vector<std::int64_t>& offset,
                              const at::Tensor& target) const {
  const TensorEntry& found = entry(name);
  const at::IntArrayRef shape = target.sizes();
  check_inside(found, offset, shape);
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1, first = 0;
  for (std::size_t axis = shape.size(); axis-- > 0; stride *= found.shape[axis]) {
    strides[axis] = stride;
    first += offset[axis] * stride;
  }
  copy_strided(name, first, strides, target);
}

void SafetensorsFile::copy_strided(const std::string& name, std::int64_t first, at::IntArrayRef strides,
                                   at::Tensor target) const {
  const TensorEntry& found = entry(name);
  if (target.numel() == 0) return;
  const std::size_t size = element_size_bytes(found.type);
  MappedPart part{
      file_->data() + header_.data_offset_bytes + found.begin_bytes + static_cast<std::size_t>(first) * size,
      target.sizes().vec(), strides.vec(), found.type};
  PHAROS_CHECK(first >= 0 && part.strides.size() == part.shape.size() &&
                   static_cast<std::size_t>(first) * size + part.extent_bytes() <= found.end_bytes - found.begin_bytes,
               found.name);
  sort_axes(part, target);
  copy_blocks(part, target);
}

at::Tensor SafetensorsFile::slice(const std::string& name, const std::vector<std::int64_t>& offset,
                                  const std::vector<std::int64_t>& shape) const {
  const TensorEntry& found = entry(name);
  check_inside(found, offset, shape);
  at::Tensor part = at::empty(shape, at::TensorOptions().dtype(scalar_type(found.type)));
  copy_to(name, offset, part);
  return part;
}

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorEntry> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)), tensors_(std::move(tensors)) {
  const std::string header = render_safetensors_header(tensors_, metadata);
  put(header.data(), header.size());
}

void SafetensorsWriter::put(const void* data, std::size_t num_bytes) {
  crc32_ = update_crc32(crc32_, data, num_bytes);
  file_.write(data, num_bytes);
}

void SafetensorsWriter::write(const at::Tensor& tensor) {
  PHAROS_CHECK(next_ < tensors_.size() && part_bytes_ == 0, "more tensors than announced");
  const TensorEntry& announced = tensors_[next_];
  PHAROS_CHECK(tensor.sizes().vec() == announced.shape, announced.name);
  write_part(tensor);
  if (tensor.numel() == 0) ++next_;
}

void SafetensorsWriter::write_part(const at::Tensor& values) {
  if (values.numel() == 0) return;
  PHAROS_CHECK(next_ < tensors_.size(), "more tensors than announced");
  const TensorEntry& announced = tensors_[next_];
  const std::size_t whole_bytes = announced.end_bytes - announced.begin_bytes;
  PHAROS_CHECK(element_type(values.scalar_type()) == announced.type && values.nbytes() <= whole_bytes - part_bytes_,
               announced.name);
  const at::Tensor rows = values.detach().cpu().contiguous();
  put(rows.const_data_ptr(), rows.nbytes());
  part_bytes_ += rows.nbytes();
  if (part_bytes_ < whole_bytes) return;
  ++next_;
  part_bytes_ = 0;
}

void SafetensorsWriter::close() {
  PHAROS_CHECK(next_ == tensors_.size() && part_bytes_ == 0, "fewer tensors than announced");
  file_.close();
}

void write_safetensors(const fs::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, element_type(tensor.scalar_type()), tensor.sizes().vec()});
  fs::path temporary = path;
  temporary += ".tmp." + std::to_string(::getpid());
  try {
    SafetensorsWriter writer(temporary, std::move(entries), metadata);
    for (const auto& [name, tensor] : tensors) writer.write(tensor);
    writer.close();
    fs::rename(temporary, path);
  } catch (const fs::filesystem_error& error) {
    ::unlink(temporary.c_str());
    throw base::UserError({.what = "Cannot write '" + path.string() + "': " + error.code().message() + ".",
                           .where = path.string(),
                           .fix = "Check the path and its permissions."});
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  base::sync_directory(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

SafetensorsSet::SafetensorsSet(const fs::path& path) : path_(path) { open(path); }

void SafetensorsSet::open(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return open_all({path});
  if (fs::exists(path / "model.safetensors", ignored)) return open_all({path / "model.safetensors"});
  if (fs::exists(path / "model.safetensors.index.json", ignored))
    return open_index(path / "model.safetensors.index.json");
  std::vector<fs::path> files;
  for (const auto& item : fs::directory_iterator(path, ignored)) {
    if (item.path().extension() == ".safetensors") files.push_back(item.path());
  }
  if (files.empty()) throw_set_error(path, {"the folder holds no *.safetensors file"});
  std::sort(files.begin(), files.end());
  open_all(files);
}

void SafetensorsSet::open_index(const fs::path& index) {
  const auto weight_map = parse_safetensors_index(base::read_file(index), index.string());
  std::map<std::string, std::size_t> opened;
  std::vector<std::string> problems;
  for (const auto& [name, file] : weight_map) {
    const auto [place, is_new] = opened.emplace(file, files_.size());
    if (is_new) {
      std::error_code ignored;
      const bool exists = fs::exists(path_ / file, ignored);
      if (!exists) problems.push_back("the file '" + file + "' is missing");
      files_.push_back(exists ? std::make_unique<SafetensorsFile>(path_ / file) : nullptr);
    }
    const auto& holder = files_[place->second];
    if (holder != nullptr && holder->header().find(name) == nullptr)
      problems.push_back("'" + file + "' does not hold '" + name + "'");
    file_of_name_[name] = place->second;
  }
  if (!problems.empty()) throw_set_error(index, problems);
}

void SafetensorsSet::open_all(const std::vector<fs::path>& files) {
  std::vector<std::string> problems;
  for (const fs::path& file : files) {
    files_.push_back(std::make_unique<SafetensorsFile>(file));
    for (const TensorEntry& entry : files_.back()->header().tensors) {
      const auto [place, is_new] = file_of_name_.emplace(entry.name, files_.size() - 1);
      if (!is_new)
        problems.push_back("'" + entry.name + "' is in '" + files_[place->second]->path().filename().string() +
                           "' and in '" + file.filename().string() + "'");
    }
  }
  if (!problems.empty()) throw_set_error(path_, problems);
}

std::vector<std::string> SafetensorsSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_name_) names.push_back(name);
  return names;
}

const TensorEntry* SafetensorsSet::find(const std::string& name) const {
  const auto found = file_of_name_.find(name);
  return found == file_of_name_.end() ? nullptr : files_[found->second]->header().find(name);
}

std::string SafetensorsSet::file_name_of(const std::string& name) const {
  return file_of(name).path().filename().string();
}

const SafetensorsFile& SafetensorsSet::file_of(const std::string& name) const {
  const auto found = file_of_name_.find(name);
  if (found != file_of_name_.end()) return *files_[found->second];
  throw base::UserError({.what = "'" + path_.string() + "' holds no tensor '" + name + "'.",
                         .where = path_.string(),
                         .fix = "Give the folder or file that has it."});
}

at::Tensor SafetensorsSet::view(const std::string& name) const { return file_of(name).view(name); }

void SafetensorsSet::copy_to(const std::string& name, const std::vector<std::int64_t>& offset,
                             const at::Tensor& target) const {
  file_of(name).copy_to(name, offset, target);
}

void SafetensorsSet::copy_strided(const std::string& name, std::int64_t first, at::IntArrayRef strides,
                                  const at::Tensor& target) const {
  file_of(name).copy_strided(name, first, strides, target);
}

at::Tensor SafetensorsSet::slice(const std::string& name, const std::vector<std::int64_t>& offset,
                                 const std::vector<std::int64_t>& shape) const {
  return file_of(name).slice(name, offset, shape);
}

}  // namespace pharos::checkpoint

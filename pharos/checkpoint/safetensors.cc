#include "pharos/checkpoint/safetensors.h"

#include <ATen/Functions.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "pharos/base/error.h"
#include "pharos/base/json.h"
#include "pharos/base/text.h"
#include "pharos/checkpoint/manifest.h"

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

/// tensor -> file name of an index, with every fault of its form.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const nlohmann::json parsed = base::read_json_file(index);
  const auto weight_map = parsed.find("weight_map");
  if (weight_map == parsed.end() || !weight_map->is_object())
    throw_set_error(index, {"'weight_map' is missing or not an object"});
  std::map<std::string, std::string> result;
  std::vector<std::string> problems;
  for (const auto& [name, file] : weight_map->items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    if (text.empty() || fs::path(text).filename() != fs::path(text) || text == "." || text == "..") {
      problems.push_back("the file of '" + name + "' is " + file.dump() + ", which is not a plain file name");
    }
    result[name] = text;
  }
  if (!problems.empty()) throw_set_error(index, problems);
  return result;
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

at::Tensor SafetensorsFile::slice(const std::string& name, const std::vector<std::int64_t>& offset,
                                  const std::vector<std::int64_t>& shape) const {
  const TensorEntry& found = entry(name);
  bool inside = offset.size() == found.shape.size() && shape.size() == found.shape.size();
  for (std::size_t axis = 0; inside && axis < shape.size(); ++axis) {
    inside = offset[axis] >= 0 && shape[axis] >= 0 && offset[axis] <= found.shape[axis] &&
             shape[axis] <= found.shape[axis] - offset[axis];
  }
  if (!inside) {
    throw base::UserError({.what = "'" + path().string() + "': tensor '" + name + "' of shape " +
                                   shape_text(found.shape) + " has no part of shape " + shape_text(shape) + " at " +
                                   shape_text(offset) + ".",
                           .where = path().string(),
                           .fix = "Give weights of the model's own shape."});
  }
  at::Tensor part = view(name);
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    part = part.narrow(static_cast<std::int64_t>(axis), offset[axis], shape[axis]);
  return part.clone(at::MemoryFormat::Contiguous);
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
  PHAROS_CHECK(next_ < tensors_.size(), "more tensors than announced");
  const TensorEntry& announced = tensors_[next_++];
  PHAROS_CHECK(tensor.sizes().vec() == announced.shape && element_type(tensor.scalar_type()) == announced.type,
               announced.name);
  const at::Tensor values = tensor.detach().cpu().contiguous();
  put(values.const_data_ptr(), announced.end_bytes - announced.begin_bytes);
}

void SafetensorsWriter::close() {
  PHAROS_CHECK(next_ == tensors_.size(), "fewer tensors than announced");
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
  const auto weight_map = read_weight_map(index);
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
  if (weight_map.empty()) problems.push_back("the index lists no tensor");
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

const SafetensorsFile& SafetensorsSet::file_of(const std::string& name) const {
  const auto found = file_of_name_.find(name);
  if (found != file_of_name_.end()) return *files_[found->second];
  throw base::UserError({.what = "'" + path_.string() + "' holds no tensor '" + name + "'.",
                         .where = path_.string(),
                         .fix = "Give the folder or file that has it."});
}

at::Tensor SafetensorsSet::view(const std::string& name) const { return file_of(name).view(name); }

at::Tensor SafetensorsSet::slice(const std::string& name, const std::vector<std::int64_t>& offset,
                                 const std::vector<std::int64_t>& shape) const {
  return file_of(name).slice(name, offset, shape);
}

}  // namespace pharos::checkpoint

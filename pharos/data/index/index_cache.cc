#include "pharos/data/index/index_cache.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "pharos/base/error.h"
#include "pharos/data/index/md5.h"
#include "pharos/data/index/npy.h"

namespace pharos::data {
namespace {

constexpr const char* kDescription = "description.txt";

/// Not synced: what a power loss leaves unfinished is found damaged and built again.
void write_by_rename(const std::filesystem::path& path, std::string_view header, std::span<const std::byte> body) {
  static std::atomic<int> counter = 0;
  std::filesystem::path temporary = path;
  temporary += ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  try {
    base::OutputFile file(temporary);
    file.write(header);
    file.write(body.data(), body.size());
    std::filesystem::rename(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace

IndexCache::IndexCache(std::filesystem::path folder, std::string description, const std::string& class_name,
                       const std::string& split_name, WarningFunction warn)
    : folder_(std::move(folder)),
      description_(std::move(description)),
      stem_(md5_hex(description_) + "-" + class_name + "-" + split_name + "-"),
      warn_(std::move(warn)) {}

std::filesystem::path IndexCache::path(const std::string& suffix) const { return folder_ / (stem_ + suffix); }

void IndexCache::warn_damaged(const std::string& reason) const {
  warn_("The index cache '" + path("*").string() + "' cannot be used: " + reason + ". It is built again.");
}

std::optional<std::vector<IntegerArray>> IndexCache::load(const std::vector<std::string>& names) const {
  std::error_code error;
  if (!std::filesystem::exists(path(kDescription), error)) return std::nullopt;
  for (const std::string& name : names) {
    if (!std::filesystem::exists(path(name + ".npy"), error)) return std::nullopt;
  }
  std::vector<IntegerArray> arrays;
  std::string file = kDescription;
  try {
    if (base::read_file(path(kDescription)) != description_) throw NpyFault("it describes another dataset");
    for (const std::string& name : names) {
      file = name + ".npy";
      arrays.push_back(read_npy(path(file)));
    }
    return arrays;
  } catch (const std::exception& fault) {
    warn_damaged(file + ": " + fault.what());
    return std::nullopt;
  }
}

void IndexCache::store(const std::vector<std::pair<std::string, const IntegerArray*>>& arrays) const {
  try {
    base::make_directories(folder_);
    for (const auto& [name, array] : arrays) write_by_rename(path(name + ".npy"), npy_header(*array), array->bytes());
    write_by_rename(path(kDescription), description_, {});
  } catch (const std::exception& fault) {
    warn_("The index cache in '" + folder_.string() +
          "' cannot be written, so the next start builds it again: " + fault.what());
  }
}

}  // namespace pharos::data

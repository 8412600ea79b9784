#include "pharos/lens/record/names.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace pharos::lens {
namespace internal {
namespace {

struct NameTable {
  std::mutex mutex;
  std::deque<std::string> texts;
  std::unordered_map<std::string_view, NameId> ids;
  std::byte* area = nullptr;
  std::size_t capacity_bytes = 0;
  std::atomic<std::uint64_t>* used_bytes = nullptr;
  bool is_area_full = false;
};

/// Never destroyed: span sites may still run while the process exits.
NameTable& table() {
  static NameTable* const instance = new NameTable;
  return *instance;
}

void append_to_area(NameTable& names, const std::string& text) {
  if (names.area == nullptr || names.is_area_full) return;
  const std::uint64_t used = names.used_bytes->load(std::memory_order_relaxed);
  const auto length = static_cast<std::uint16_t>(std::min<std::size_t>(text.size(), 0xffff));
  // Numbers are positions: after the first name that does not fit none may follow.
  names.is_area_full = used + sizeof length + length > names.capacity_bytes;
  if (names.is_area_full) return;
  std::memcpy(names.area + used, &length, sizeof length);
  std::memcpy(names.area + used + sizeof length, text.data(), length);
  names.used_bytes->store(used + sizeof length + length, std::memory_order_release);
}

}  // namespace

std::string name_text(NameId id) {
  NameTable& names = table();
  const std::lock_guard lock(names.mutex);
  return id < names.texts.size() ? names.texts[id] : "unknown name " + std::to_string(id);
}

void mirror_names(std::byte* area, std::size_t capacity_bytes, std::atomic<std::uint64_t>* used_bytes) {
  NameTable& names = table();
  const std::lock_guard lock(names.mutex);
  names.area = area;
  names.capacity_bytes = capacity_bytes;
  names.used_bytes = used_bytes;
  names.is_area_full = false;
  for (const std::string& text : names.texts) append_to_area(names, text);
}

void lock_names() { table().mutex.lock(); }
void unlock_names() { table().mutex.unlock(); }

}  // namespace internal

NameId intern_name(std::string_view name) {
  internal::NameTable& names = internal::table();
  const std::lock_guard lock(names.mutex);
  const auto found = names.ids.find(name);
  if (found != names.ids.end()) return found->second;
  const auto id = static_cast<NameId>(names.texts.size());
  names.texts.emplace_back(name);
  names.ids.emplace(names.texts.back(), id);
  internal::append_to_area(names, names.texts.back());
  return id;
}

}  // namespace pharos::lens

#include "pharos/launch/doctor/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>

namespace pharos::launch {

void* LoadedLibrary::find(const char* symbol) const { return handle == nullptr ? nullptr : ::dlsym(handle, symbol); }

LoadedLibrary load_library(const std::vector<std::string>& names) {
  LoadedLibrary library;
  for (const std::string& name : names) {
    library.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle == nullptr) {
      if (const char* error = ::dlerror(); library.error.empty() && error != nullptr) library.error = error;
      continue;
    }
    link_map* map = nullptr;
    library.path = ::dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
    library.error.clear();
    break;
  }
  return library;
}

std::string version_of_nccl(const LoadedLibrary& library) {
  auto* get = reinterpret_cast<int (*)(int*)>(library.find("ncclGetVersion"));
  int code = 0;
  if (get == nullptr || get(&code) != 0) return {};
  // NCCL_VERSION: X·1000 + Y·100 + Z up to 2.8, X·10000 + Y·100 + Z from 2.9 on.
  const int major_unit = code < 10000 ? 1000 : 10000;
  return std::to_string(code / major_unit) + "." + std::to_string(code % major_unit / 100) + "." +
         std::to_string(code % 100);
}

std::string version_of_libfabric(const LoadedLibrary& library) {
  auto* get = reinterpret_cast<std::uint32_t (*)()>(library.find("fi_version"));
  if (get == nullptr) return {};
  const std::uint32_t code = get();  // FI_VERSION: major in the upper half
  return std::to_string(code >> 16) + "." + std::to_string(code & 0xffff);
}

}  // namespace pharos::launch

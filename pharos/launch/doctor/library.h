// Libraries that are loaded at run time, tried one after the other.
#pragma once

#include <string>
#include <vector>

namespace pharos::launch {

struct LoadedLibrary {
  void* handle = nullptr;  ///< never closed; nullptr: none of the names could be loaded
  std::string path;        ///< of the file
  std::string error;       ///< of the loader, for the first name

  bool is_loaded() const { return handle != nullptr; }
  /// Address of a symbol; nullptr when there is none.
  void* find(const char* symbol) const;
};

/// The first of `names` that the loader finds. Runs the library's start code: do it in a BoundedCall.
LoadedLibrary load_library(const std::vector<std::string>& names);

/// Version of NCCL, "2.29.3", as the library itself says; empty when it does not.
std::string version_of_nccl(const LoadedLibrary& library);
/// Version of libfabric's interface, "2.1"; empty when it does not say.
std::string version_of_libfabric(const LoadedLibrary& library);

}  // namespace pharos::launch

#include "pharos/profile/library.h"

#include <dlfcn.h>

namespace pharos::profile {

Library Library::find(std::initializer_list<const char*> names) {
  Library library;
  for (const int flags : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const char* name : names) {
      library.handle_ = ::dlopen(name, flags);
      if (library.handle_ != nullptr) {
        library.text_ = name;
        return library;
      }
    }
  }
  const char* error = ::dlerror();
  library.text_ = error != nullptr ? error : "not found";
  return library;
}

void* Library::symbol(const char* name) const { return handle_ != nullptr ? ::dlsym(handle_, name) : nullptr; }

}  // namespace pharos::profile

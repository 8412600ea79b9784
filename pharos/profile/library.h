// Libraries that are there on some machines only, looked for when they are needed.
#pragma once

#include <initializer_list>
#include <string>

namespace pharos::profile {

/// A shared library of this process. It stays loaded until the process ends: what it started may outlive its user.
class Library {
 public:
  /// The first of `names` that the process has loaded already, else the first that the loader finds (LD_LIBRARY_PATH,
  /// the linker's cache).
  static Library find(std::initializer_list<const char*> names);

  explicit operator bool() const { return handle_ != nullptr; }
  /// Name it was found by; the last error of the loader when it was not.
  const std::string& text() const { return text_; }

  /// The function of that name, null when the library has none. `Function` is its type, which nobody checks.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string text_;
};

}  // namespace pharos::profile

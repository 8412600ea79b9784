// Where in the program a record is written: std::source_location, or the same for compilers whose library has none.
#pragma once

#include <cstdint>
#include <version>

#ifdef __cpp_lib_source_location
#include <source_location>
#endif

namespace pharos::lens {

#ifdef __cpp_lib_source_location
using SourceLocation = std::source_location;
#else
class SourceLocation {
 public:
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          std::uint32_t line = __builtin_LINE()) {
    return {file, function, line};
  }
  constexpr SourceLocation(const char* file, const char* function, std::uint32_t line)
      : file_(file), function_(function), line_(line) {}
  constexpr const char* file_name() const { return file_; }
  constexpr const char* function_name() const { return function_; }
  constexpr std::uint32_t line() const { return line_; }

 private:
  const char* file_;
  const char* function_;
  std::uint32_t line_;
};
#endif

}  // namespace pharos::lens

// Fuzz entry point of the override grammar and its application. Only UserError may leave the parser.
#include <cstddef>
#include <cstdint>
#include <string>

#include "pharos/base/error.h"
#include "pharos/config/recipe/run_yaml.h"
#include "pharos/config/resolve.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  // One override a line.
  pharos::config::ResolveRequest request;
  std::string word;
  for (std::size_t i = 0; i < num_bytes; ++i) {
    if (data[i] == '\n') {
      request.overrides.push_back(word);
      word.clear();
    } else {
      word += static_cast<char>(data[i]);
    }
  }
  request.overrides.push_back(word);
  try {
    const auto resolved = pharos::config::resolve(request);
    pharos::config::to_yaml(resolved);
  } catch (const pharos::base::UserError&) {
  }
  return 0;
}

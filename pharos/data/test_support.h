// For the tests of this module: temporary folders, the Megatron fixtures, damaged files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/base/file.h"
#include "pharos/base/json.h"

namespace pharos::data {

inline const std::filesystem::path kFixtures = std::filesystem::path(PHAROS_TEST_DATA) / "megatron_data";

/// A folder of its own that disappears with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> counter = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("pharos_data_test." + std::to_string(::getpid()) + "." + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string string() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The message of the UserError that `action` throws; a failure if it throws none.
template <typename Action>
std::string user_error(const Action& action) {
  try {
    action();
  } catch (const base::UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

/// Tensors of a safetensors file of I64, I32 and U8, widened to int64.
class Oracle {
 public:
  explicit Oracle(const std::filesystem::path& path) : content_(base::read_file(path)) {
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, content_.data(), sizeof header_bytes);
    header_ = nlohmann::json::parse(content_.substr(8, header_bytes));
    data_ = 8 + header_bytes;
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  std::vector<std::int64_t> operator[](const std::string& name) const {
    const nlohmann::json& entry = header_.at(name);
    const std::size_t begin = entry["data_offsets"][0];
    const std::size_t end = entry["data_offsets"][1];
    const std::string type = entry["dtype"];
    const std::size_t width = type == "I64" ? 8 : type == "I32" ? 4 : 1;
    std::vector<std::int64_t> values;
    for (std::size_t at = begin; at < end; at += width) {
      std::int64_t wide = 0;
      std::int32_t narrow = 0;
      const char* source = content_.data() + data_ + at;
      if (width == 8) std::memcpy(&wide, source, 8);
      if (width == 4) std::memcpy(&narrow, source, 4), wide = narrow;
      if (width == 1) wide = static_cast<unsigned char>(*source);
      values.push_back(wide);
    }
    return values;
  }

 private:
  std::string content_;
  nlohmann::json header_;
  std::size_t data_;
};

}  // namespace pharos::data

// An array of integers of one of four widths, owned or lying in a mapped .npy file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "pharos/base/file.h"

namespace pharos::data {

enum class IntegerType { kInt16, kInt32, kUint32, kInt64 };

constexpr std::size_t size_bytes(IntegerType type) {
  switch (type) {
    case IntegerType::kInt16:
      return 2;
    case IntegerType::kInt64:
      return 8;
    default:
      return 4;
  }
}

/// Row-major integers, [rows, columns] (columns is 1 for a vector). Elements are read as int64 whatever the width.
class IntegerArray {
 public:
  IntegerArray() = default;

  /// Zeros, owned.
  IntegerArray(IntegerType type, std::int64_t rows, std::int64_t columns = 1)
      : type_(type),
        rows_(rows),
        columns_(columns),
        owned_(static_cast<std::size_t>(rows * columns) * size_bytes(type)) {
    data_ = owned_.data();
  }

  /// The elements that start at byte `offset_bytes` of `file` (aligned to the element size).
  IntegerArray(base::MappedFile file, std::size_t offset_bytes, IntegerType type, std::int64_t rows,
               std::int64_t columns)
      : type_(type), rows_(rows), columns_(columns), mapped_(std::move(file)) {
    data_ = mapped_.data() + offset_bytes;
  }

  IntegerType type() const { return type_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t size() const { return rows_ * columns_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size()) * size_bytes(type_)}; }

  std::int64_t operator[](std::int64_t i) const {
    switch (type_) {
      case IntegerType::kInt16:
        return load<std::int16_t>(i);
      case IntegerType::kInt32:
        return load<std::int32_t>(i);
      case IntegerType::kUint32:
        return load<std::uint32_t>(i);
      default:
        return load<std::int64_t>(i);
    }
  }

  /// Writable elements of an owned array; Value must be the type given at construction.
  template <typename Value>
  std::span<Value> values() {
    return {reinterpret_cast<Value*>(owned_.data()), owned_.size() / sizeof(Value)};
  }

 private:
  template <typename Value>
  std::int64_t load(std::int64_t i) const {
    Value value;
    std::memcpy(&value, data_ + static_cast<std::size_t>(i) * sizeof(Value), sizeof(Value));
    return static_cast<std::int64_t>(value);
  }

  IntegerType type_ = IntegerType::kInt32;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 1;
  std::vector<std::byte> owned_;
  base::MappedFile mapped_;
  const std::byte* data_ = nullptr;
};

}  // namespace pharos::data

// Attributes of spans: a key and a value of one of the types that telemetry knows.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pharos::lens {

/// Marks a span as a boundary for resiliency accounting: {kGoodput, true} (megatron-telemetry.md section 1.8).
inline constexpr std::string_view kGoodput = "is_goodput_span";

/// Value of an attribute, by reference: text and lists must outlive the call they are passed to, not more.
class AttributeValue {
 public:
  enum class Type : std::uint8_t { kNone, kBool, kInteger, kDouble, kText, kIntegers };

  constexpr AttributeValue() {}
  constexpr AttributeValue(bool value) : type_(Type::kBool), bits_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) constexpr AttributeValue(T value)
      : type_(Type::kInteger), bits_(static_cast<std::int64_t>(value)) {}
  template <std::floating_point T>
  constexpr AttributeValue(T value)
      : type_(Type::kDouble), bits_(std::bit_cast<std::int64_t>(static_cast<double>(value))) {}
  constexpr AttributeValue(std::string_view value) : type_(Type::kText), data_(value.data()), size_(value.size()) {}
  constexpr AttributeValue(const char* value) : AttributeValue(std::string_view(value)) {}
  AttributeValue(const std::string& value) : AttributeValue(std::string_view(value)) {}
  AttributeValue(std::span<const std::int64_t> value)
      : type_(Type::kIntegers), data_(value.data()), size_(value.size()) {}
  AttributeValue(const std::vector<std::int64_t>& value) : AttributeValue(std::span<const std::int64_t>(value)) {}

  constexpr Type type() const { return type_; }
  constexpr bool as_bool() const { return bits_ != 0; }
  constexpr std::int64_t as_integer() const { return bits_; }
  constexpr double as_double() const { return std::bit_cast<double>(bits_); }
  std::string_view as_text() const { return {static_cast<const char*>(data_), size_}; }
  std::span<const std::int64_t> as_integers() const { return {static_cast<const std::int64_t*>(data_), size_}; }

 private:
  Type type_ = Type::kNone;
  std::int64_t bits_ = 0;
  const void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An attribute with an empty key or without a value is skipped.
struct Attribute {
  constexpr Attribute() {}
  constexpr Attribute(std::string_view attribute_key, AttributeValue attribute_value)
      : key(attribute_key), value(attribute_value) {}

  std::string_view key;
  AttributeValue value;
};

}  // namespace pharos::lens

// Attributes of spans: a key and a value of one of the types that telemetry knows.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pharos::lens {

/// Marks a span as a boundary for resiliency accounting: {kGoodput, true} (megatron-telemetry.md section 1.8).
inline constexpr std::string_view kGoodput = "is_goodput_span";

/// Value of an attribute, by reference: text and lists must outlive the call they are passed to, not more. An unsigned
/// integer that no signed one of 64 bits can hold is no value.
class AttributeValue {
 public:
  enum class Type : std::uint8_t { kNone, kBool, kInteger, kDouble, kText, kIntegers, kDoubles, kTexts, kBools };

  constexpr AttributeValue() {}
  constexpr AttributeValue(bool value) : type_(Type::kBool), bits_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) constexpr AttributeValue(T value)
      : type_(std::in_range<std::int64_t>(value) ? Type::kInteger : Type::kNone),
        bits_(static_cast<std::int64_t>(value)) {}
  template <std::floating_point T>
  constexpr AttributeValue(T value)
      : type_(Type::kDouble), bits_(std::bit_cast<std::int64_t>(static_cast<double>(value))) {}
  constexpr AttributeValue(std::string_view value) : type_(Type::kText), data_(value.data()), size_(value.size()) {}
  constexpr AttributeValue(const char* value) : AttributeValue(std::string_view(value)) {}
  AttributeValue(const std::string& value) : AttributeValue(std::string_view(value)) {}

  AttributeValue(std::span<const std::int64_t> value) : AttributeValue(Type::kIntegers, value.data(), value.size()) {}
  AttributeValue(const std::vector<std::int64_t>& value)
      : AttributeValue(Type::kIntegers, value.data(), value.size()) {}
  AttributeValue(std::span<const double> value) : AttributeValue(Type::kDoubles, value.data(), value.size()) {}
  AttributeValue(const std::vector<double>& value) : AttributeValue(Type::kDoubles, value.data(), value.size()) {}
  AttributeValue(std::span<const std::string_view> value) : AttributeValue(Type::kTexts, value.data(), value.size()) {}
  AttributeValue(const std::vector<std::string_view>& value)
      : AttributeValue(Type::kTexts, value.data(), value.size()) {}
  AttributeValue(std::span<const std::string> value) : AttributeValue(Type::kTexts, value.data(), value.size()) {
    form_ = Form::kStrings;
  }
  AttributeValue(const std::vector<std::string>& value) : AttributeValue(std::span<const std::string>(value)) {}
  AttributeValue(std::span<const bool> value) : AttributeValue(Type::kBools, value.data(), value.size()) {}
  AttributeValue(const std::vector<bool>& value) : AttributeValue(Type::kBools, &value, value.size()) {
    form_ = Form::kBitVector;
  }

  constexpr Type type() const { return type_; }
  constexpr bool as_bool() const { return bits_ != 0; }
  constexpr std::int64_t as_integer() const { return bits_; }
  constexpr double as_double() const { return std::bit_cast<double>(bits_); }
  std::string_view as_text() const { return {static_cast<const char*>(data_), size_}; }
  std::span<const std::int64_t> as_integers() const { return {static_cast<const std::int64_t*>(data_), size_}; }
  std::span<const double> as_doubles() const { return {static_cast<const double*>(data_), size_}; }

  /// Elements of a list.
  std::size_t size() const { return size_; }
  /// Element of kTexts.
  std::string_view text_at(std::size_t index) const {
    if (form_ == Form::kStrings) return static_cast<const std::string*>(data_)[index];
    return static_cast<const std::string_view*>(data_)[index];
  }
  /// Element of kBools.
  bool bool_at(std::size_t index) const {
    if (form_ == Form::kBitVector) return (*static_cast<const std::vector<bool>*>(data_))[index];
    return static_cast<const bool*>(data_)[index];
  }

 private:
  enum class Form : std::uint8_t { kArray, kStrings, kBitVector };

  AttributeValue(Type type, const void* data, std::size_t size) : type_(type), data_(data), size_(size) {}

  Type type_ = Type::kNone;
  Form form_ = Form::kArray;
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

/// Keys whose text is not written: prompt, input_text, output_text, text, password, token, secret, key (lens.md section
/// 5.3).
const std::vector<std::string>& default_redact_keys();

/// "[REDACTED]" if `value` is text and `key` is one of `redact_keys`, else `value`. Unlike nemo-lens, upper and lower
/// case are the same here: `Token` is as secret as `token`. Lists of text are redacted where they are stored.
AttributeValue redact_value(std::string_view key, AttributeValue value,
                            const std::vector<std::string>& redact_keys = default_redact_keys());

}  // namespace pharos::lens

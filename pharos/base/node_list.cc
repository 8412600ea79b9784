#include "pharos/base/node_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "pharos/base/error.h"

namespace pharos::base {
namespace {

constexpr std::size_t kMostHosts = 1'000'000;

class Reader {
 public:
  explicit Reader(std::string_view list) : list_(list) {}

  std::vector<std::string> hosts() {
    if (list_.empty()) fail("it is empty");
    std::vector<std::string> all;
    while (true) {
      const std::vector<std::string> names = entry();
      check_number(all.size() + names.size());
      all.insert(all.end(), names.begin(), names.end());
      if (at_end()) return all;
      ++position_;  // the comma
    }
  }

 private:
  bool at_end() const { return position_ == list_.size(); }
  bool at(char letter) const { return !at_end() && list_[position_] == letter; }

  [[noreturn]] void fail(const std::string& why) const {
    throw UserError({.what = "The node list \"" + std::string(list_) + "\" cannot be read: " + why +
                             (list_.empty() ? "." : ", at character " + std::to_string(position_ + 1) + "."),
                     .where = "node list",
                     .fix = "Write it as SLURM does, for example rack[3-4]n[01-08,11],x7."});
  }

  void check_number(std::size_t number) const {
    if (number > kMostHosts) fail("it has more than " + std::to_string(kMostHosts) + " hosts");
  }

  /// Everything up to a comma outside brackets: literal text and brackets, multiplied out.
  std::vector<std::string> entry() {
    const std::size_t start = position_;
    std::vector<std::string> names = {""};
    while (!at_end() && !at(',')) {
      const std::vector<std::string> parts = at('[') ? bracket() : std::vector<std::string>{literal()};
      check_number(names.size() * parts.size());
      std::vector<std::string> longer;
      longer.reserve(names.size() * parts.size());
      for (const std::string& name : names)
        for (const std::string& part : parts) longer.push_back(name + part);
      names = std::move(longer);
    }
    if (position_ == start) fail("a host name is missing");
    return names;
  }

  std::string literal() {
    constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const std::size_t end = std::min(list_.find_first_not_of(kAllowed, position_), list_.size());
    std::string text(list_.substr(position_, end - position_));
    position_ = end;
    if (!at_end() && !at('[') && !at(',')) fail(std::string("'") + list_[position_] + "' has no place in it");
    return text;
  }

  std::vector<std::string> bracket() {
    std::vector<std::string> numbers;
    do {
      ++position_;  // the bracket or a comma
      range(numbers);
    } while (at(','));
    if (!at(']')) fail(at_end() ? "a ']' is missing" : "a number, '-', ',' or ']' is expected");
    ++position_;
    return numbers;
  }

  void range(std::vector<std::string>& numbers) {
    const std::string_view low_text = digits();
    const std::uint64_t low = value_of(low_text);
    std::uint64_t high = low;
    if (at('-')) {
      ++position_;
      high = value_of(digits());
    }
    if (high < low) fail("a range runs backwards");
    if (high - low >= kMostHosts) check_number(kMostHosts + 1);
    check_number(numbers.size() + (high - low + 1));
    for (std::uint64_t number = low; number <= high; ++number) {
      const std::string text = std::to_string(number);
      numbers.push_back(std::string(low_text.size() > text.size() ? low_text.size() - text.size() : 0, '0') + text);
    }
  }

  std::string_view digits() {
    const std::size_t end = std::min(list_.find_first_not_of("0123456789", position_), list_.size());
    if (end == position_) fail("a number is missing");
    const std::string_view text = list_.substr(position_, end - position_);
    position_ = end;
    return text;
  }

  std::uint64_t value_of(std::string_view text) const {
    std::uint64_t value = 0;
    if (text.size() > 18 || std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
      fail("a number is too large");
    return value;
  }

  std::string_view list_;
  std::size_t position_ = 0;
};

}  // namespace

std::vector<std::string> expand_node_list(std::string_view list) { return Reader(list).hosts(); }

}  // namespace pharos::base

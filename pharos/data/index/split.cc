#include "pharos/data/index/split.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "pharos/base/error.h"

namespace pharos::data {
namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw base::UserError({.what = "The split '" + text + "' cannot be used.",
                         .where = "dataset.split",
                         .why = why,
                         .fix = "Give the shares of training, validation and test, for example 969,30,1."});
}

}  // namespace

const char* name(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    default:
      return "test";
  }
}

SplitShares parse_split(const std::string& text) {
  std::vector<double> shares;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == ',' || text[at] == ' ' || text[at] == '\t' || text[at] == '/') {
      ++at;
      continue;
    }
    const std::size_t end = std::min(text.find_first_not_of("0123456789.", at), text.size());
    if (end == at) refuse(text, std::string("'") + text[at] + "' is neither part of a number nor a separator.");
    const std::string number = text.substr(at, end - at);
    char* rest = nullptr;
    shares.push_back(std::strtod(number.c_str(), &rest));
    if (*rest != '\0' || number == ".") refuse(text, "'" + number + "' is not a number.");
    at = end;
  }
  if (shares.empty() || shares.size() > 3)
    refuse(text, "It has " + std::to_string(shares.size()) + " numbers; there are three parts.");
  shares.resize(3, 0.0);
  const double total = shares[0] + shares[1] + shares[2];
  if (!(total > 0) || std::isinf(total)) refuse(text, "Its shares add up to " + std::to_string(total) + ".");

  SplitShares split{.text = text};
  double begin = 0;
  for (std::size_t part = 0; part < 3; ++part) {
    const double end = begin + shares[part] / total;
    if (end > begin) split.bounds[part] = {begin, end};
    begin = end;
  }
  return split;
}

std::optional<std::pair<std::int64_t, std::int64_t>> SplitShares::sequences(Split split, std::int64_t count) const {
  const auto& bound = bounds[static_cast<std::size_t>(split)];
  if (!bound) return std::nullopt;
  const auto position = [&](double share) { return std::llrint(share * static_cast<double>(count)); };  // half to even
  return std::pair<std::int64_t, std::int64_t>(position(bound->first),
                                               std::min<std::int64_t>(position(bound->second), count));
}

}  // namespace pharos::data

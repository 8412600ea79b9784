#include "pharos/optim/names/name_rules.h"

#include <algorithm>

#include "pharos/base/error.h"
#include "pharos/base/text.h"

namespace pharos::optim {
namespace {

bool fits_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return config::matches_pattern(pattern, name); });
}

/// The names that have most in common with `pattern`, at its begin and its end.
std::vector<std::string> nearest_pieces(const std::string& pattern, const std::set<std::string>& pieces) {
  constexpr std::size_t kMost = 3;
  std::string bare = pattern;
  std::erase(bare, '*');
  std::vector<std::string> names(pieces.begin(), pieces.end());
  const auto common = [&](const std::string& name) {
    return std::mismatch(bare.begin(), bare.end(), name.begin(), name.end()).first - bare.begin() +
           (std::mismatch(bare.rbegin(), bare.rend(), name.rbegin(), name.rend()).first - bare.rbegin());
  };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return common(a) > common(b); });
  names.resize(std::min(names.size(), kMost));
  return names;
}

[[noreturn]] void throw_divided(const std::string& field, const std::string& where, const tensor::Parameter& parameter,
                                const std::string& treated, const std::string& other) {
  std::vector<std::string> names;
  for (const tensor::Piece& piece : parameter.pieces) names.push_back(piece.name);
  throw base::UserError({.what = field + " treats '" + treated + "' unlike '" + other + "'.",
                         .where = where,
                         .why = "They are parts of one weight, which is trained as a whole.",
                         .fix = "Use a pattern that fits all of " + base::join(names, ", ") + "."});
}

double scale_of(const std::string& name, const std::vector<config::LrScale>& scales) {
  const auto last = std::find_if(scales.rbegin(), scales.rend(), [&](const config::LrScale& scale) {
    return config::matches_pattern(scale.pattern, name);
  });
  return last == scales.rend() ? 1.0 : last->factor;
}

}  // namespace

void check_patterns(const std::string& field, const std::string& where, const std::vector<std::string>& patterns,
                    const std::set<std::string>& model_pieces) {
  for (const std::string& pattern : patterns) {
    const bool fits = std::any_of(model_pieces.begin(), model_pieces.end(),
                                  [&](const std::string& name) { return config::matches_pattern(pattern, name); });
    if (fits) continue;
    const std::vector<std::string> nearest = nearest_pieces(pattern, model_pieces);
    throw base::UserError({.what = field + " has the pattern '" + pattern + "', which fits no weight of the model.",
                           .where = where,
                           .why = "Patterns are compared with whole names; * stands for any text.",
                           .fix = "Names are for example " + base::join(nearest, ", ") + "."});
  }
}

void freeze(const std::vector<tensor::Parameter*>& parameters, const std::vector<std::string>& patterns,
            const std::string& where) {
  for (tensor::Parameter* parameter : parameters) {
    const auto fits = [&](const tensor::Piece& piece) { return fits_any(patterns, piece.name); };
    const auto& pieces = parameter->pieces;
    const auto frozen = std::find_if(pieces.begin(), pieces.end(), fits);
    if (frozen == pieces.end()) continue;
    const auto trained = std::find_if_not(pieces.begin(), pieces.end(), fits);
    if (trained != pieces.end()) throw_divided("optimizer.freeze", where, *parameter, frozen->name, trained->name);
    parameter->trainable = false;
  }
}

double learning_rate_scale(const tensor::Parameter& parameter, const std::vector<config::LrScale>& scales) {
  if (scales.empty() || parameter.pieces.empty()) return 1;
  const double scale = scale_of(parameter.pieces.front().name, scales);
  for (const tensor::Piece& piece : parameter.pieces) {
    if (scale_of(piece.name, scales) != scale)
      throw_divided("optimizer.lr_scales", "", parameter, parameter.pieces.front().name, piece.name);
  }
  return scale;
}

}  // namespace pharos::optim

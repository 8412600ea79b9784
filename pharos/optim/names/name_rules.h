// What patterns of names say about weights: which are frozen, and whose learning rate is scaled.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "pharos/config/grammar/name_patterns.h"
#include "pharos/tensor/parameter.h"

namespace pharos::optim {

/// UserError when one of `patterns` (of the setting `field`) fits no name of `model_pieces`, which are those of the
/// whole model, with the nearest names. `where`: origin of the setting.
void check_patterns(const std::string& field, const std::string& where, const std::vector<std::string>& patterns,
                    const std::set<std::string>& model_pieces);

/// Makes parameters whose pieces fit one of `patterns` not trainable, before an optimizer is made for them. UserError
/// for a parameter of which only some pieces fit: they are one weight and are trained together.
void freeze(const std::vector<tensor::Parameter*>& parameters, const std::vector<std::string>& patterns,
            const std::string& where);

/// The factor of the last entry that fits, 1 if none does. UserError where the pieces of the parameter differ.
double learning_rate_scale(const tensor::Parameter& parameter, const std::vector<config::LrScale>& scales);

}  // namespace pharos::optim

// Spellings of the enumerations in YAML and overrides; the first spelling of a value is the one that is written.
#pragma once

#include <string>
#include <vector>

#include "pharos/config/enums.h"

namespace pharos::config {

struct EnumSpelling {
  int value;
  std::string name;
};
using EnumSpellings = std::vector<EnumSpelling>;

const EnumSpellings& spellings(PositionEmbedding);
const EnumSpellings& spellings(Normalization);
const EnumSpellings& spellings(Activation);
const EnumSpellings& spellings(AttentionBackend);
const EnumSpellings& spellings(SoftmaxType);
const EnumSpellings& spellings(MlaRopeType);
const EnumSpellings& spellings(RecomputeGranularity);
const EnumSpellings& spellings(RecomputeMethod);
const EnumSpellings& spellings(RouterScoreFunction);
const EnumSpellings& spellings(RouterGroupScore);
const EnumSpellings& spellings(RouterDType);
const EnumSpellings& spellings(TokenDropPolicy);
const EnumSpellings& spellings(TokenDispatcher);
const EnumSpellings& spellings(FlexBackend);
const EnumSpellings& spellings(LossFusion);
const EnumSpellings& spellings(LrDecayStyle);
const EnumSpellings& spellings(WsdDecayStyle);
const EnumSpellings& spellings(WeightDecayIncrStyle);
const EnumSpellings& spellings(OptimizerKind);
const EnumSpellings& spellings(DataloaderType);
const EnumSpellings& spellings(DType);
const EnumSpellings& spellings(ShardingStrategy);
const EnumSpellings& spellings(DistributedBackend);
const EnumSpellings& spellings(DeviceKind);
const EnumSpellings& spellings(RerunMode);
const EnumSpellings& spellings(TimingLogOption);
const EnumSpellings& spellings(CheckpointFormat);
const EnumSpellings& spellings(TokenizerType);
const EnumSpellings& spellings(ExitSignal);

/// The written spelling of `value`, for messages and logs.
template <typename T>
std::string enum_name(T value) {
  for (const EnumSpelling& spelling : spellings(value)) {
    if (spelling.value == static_cast<int>(value)) return spelling.name;
  }
  return "?";
}

}  // namespace pharos::config

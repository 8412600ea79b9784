// Closed choices of the configuration. Their spellings in YAML are declared in enum_names.h.
#pragma once

namespace pharos::config {

enum class PositionEmbedding { kLearnedAbsolute, kRope, kYarn, kNone };
enum class Normalization { kLayerNorm, kRmsNorm };
enum class Activation { kGelu, kRelu, kSilu, kSigmoid, kTanh, kSquaredRelu, kGeluTanh, kQuickGelu };
enum class AttentionBackend { kAuto, kFlash, kFused, kUnfused, kLocal };
enum class SoftmaxType { kVanilla, kOffByOne, kLearnable };
enum class MlaRopeType { kRope, kYarn };
enum class RecomputeGranularity { kFull, kSelective };
enum class RecomputeMethod { kUniform, kBlock };
enum class RouterScoreFunction { kSoftmax, kSigmoid, kSqrtSoftplus };
enum class RouterGroupScore { kSumOfTopk, kMaximum, kSumOfTwo };
enum class RouterDType { kFloat32, kFloat64 };
enum class TokenDropPolicy { kProbabilities, kPosition };
enum class TokenDispatcher { kAllGather, kAllToAll, kFlex };
enum class FlexBackend { kDeepEp, kHybridEp, kNcclEp, kNative };
enum class LossFusion { kNative, kTransformerEngine };
enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdDecayStyle { kExponential, kLinear, kCosine, kMinusSqrt };
enum class WeightDecayIncrStyle { kConstant, kLinear, kCosine };
enum class OptimizerKind { kAdam, kSgd, kMuon, kDistMuon, kLion };
enum class DataloaderType { kSingle, kCyclic, kBatch, kExternal };
enum class DType { kFloat32, kBFloat16, kFloat16, kFloat8 };
enum class ShardingStrategy { kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
enum class DistributedBackend { kNccl, kGloo };
enum class DeviceKind { kCpu, kCuda };
enum class RerunMode { kDisabled, kValidateResults, kReportDeterminismStats };
enum class TimingLogOption { kMinMax, kMax, kAll };
enum class CheckpointFormat { kTorchDist, kTorch, kTorchDcp, kFsdpDTensor };
enum class TokenizerType {
  kByteLevel,
  kHuggingFace,
  kSentencePiece,
  kGptSentencePiece,
  kLlama2,
  kGpt2Bpe,
  kTikToken,
  kNull,
};
enum class ExitSignal { kTerm, kInt, kUsr1, kUsr2, kHup };

}  // namespace pharos::config

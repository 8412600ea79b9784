#include "pharos/config/schema/enum_names.h"

namespace pharos::config {
namespace {

template <typename T>
EnumSpelling spell(T value, const char* name) {
  return {static_cast<int>(value), name};
}

}  // namespace

const EnumSpellings& spellings(PositionEmbedding) {
  static const EnumSpellings names = {spell(PositionEmbedding::kLearnedAbsolute, "learned_absolute"),
                                      spell(PositionEmbedding::kRope, "rope"), spell(PositionEmbedding::kYarn, "yarn"),
                                      spell(PositionEmbedding::kNone, "none")};
  return names;
}

const EnumSpellings& spellings(Normalization) {
  static const EnumSpellings names = {spell(Normalization::kLayerNorm, "LayerNorm"),
                                      spell(Normalization::kRmsNorm, "RMSNorm")};
  return names;
}

const EnumSpellings& spellings(Activation) {
  static const EnumSpellings names = {spell(Activation::kGelu, "gelu"),
                                      spell(Activation::kRelu, "relu"),
                                      spell(Activation::kSilu, "silu"),
                                      spell(Activation::kSilu, "swish"),
                                      spell(Activation::kSigmoid, "sigmoid"),
                                      spell(Activation::kTanh, "tanh"),
                                      spell(Activation::kSquaredRelu, "squared_relu"),
                                      spell(Activation::kSquaredRelu, "relu2"),
                                      spell(Activation::kGeluTanh, "gelu_pytorch_tanh"),
                                      spell(Activation::kGeluTanh, "fast_gelu"),
                                      spell(Activation::kQuickGelu, "quick_gelu")};
  return names;
}

const EnumSpellings& spellings(AttentionBackend) {
  static const EnumSpellings names = {spell(AttentionBackend::kAuto, "auto"), spell(AttentionBackend::kFlash, "flash"),
                                      spell(AttentionBackend::kFused, "fused"),
                                      spell(AttentionBackend::kUnfused, "unfused"),
                                      spell(AttentionBackend::kLocal, "local")};
  return names;
}

const EnumSpellings& spellings(SoftmaxType) {
  static const EnumSpellings names = {spell(SoftmaxType::kVanilla, "vanilla"),
                                      spell(SoftmaxType::kOffByOne, "off-by-one"),
                                      spell(SoftmaxType::kLearnable, "learnable")};
  return names;
}

const EnumSpellings& spellings(MlaRopeType) {
  static const EnumSpellings names = {spell(MlaRopeType::kRope, "rope"), spell(MlaRopeType::kYarn, "yarn")};
  return names;
}

const EnumSpellings& spellings(RecomputeGranularity) {
  static const EnumSpellings names = {spell(RecomputeGranularity::kFull, "full"),
                                      spell(RecomputeGranularity::kSelective, "selective")};
  return names;
}

const EnumSpellings& spellings(RecomputeMethod) {
  static const EnumSpellings names = {spell(RecomputeMethod::kUniform, "uniform"),
                                      spell(RecomputeMethod::kBlock, "block")};
  return names;
}

const EnumSpellings& spellings(RouterScoreFunction) {
  static const EnumSpellings names = {spell(RouterScoreFunction::kSoftmax, "softmax"),
                                      spell(RouterScoreFunction::kSigmoid, "sigmoid"),
                                      spell(RouterScoreFunction::kSqrtSoftplus, "sqrtsoftplus")};
  return names;
}

const EnumSpellings& spellings(RouterGroupScore) {
  static const EnumSpellings names = {spell(RouterGroupScore::kSumOfTopk, "sum_of_topk"),
                                      spell(RouterGroupScore::kMaximum, "max"),
                                      spell(RouterGroupScore::kSumOfTwo, "sum_of_two")};
  return names;
}

const EnumSpellings& spellings(RouterDType) {
  static const EnumSpellings names = {spell(RouterDType::kFloat32, "fp32"), spell(RouterDType::kFloat64, "fp64")};
  return names;
}

const EnumSpellings& spellings(TokenDropPolicy) {
  static const EnumSpellings names = {spell(TokenDropPolicy::kProbabilities, "probs"),
                                      spell(TokenDropPolicy::kPosition, "position")};
  return names;
}

const EnumSpellings& spellings(TokenDispatcher) {
  static const EnumSpellings names = {spell(TokenDispatcher::kAllGather, "allgather"),
                                      spell(TokenDispatcher::kAllToAll, "alltoall"),
                                      spell(TokenDispatcher::kFlex, "flex")};
  return names;
}

const EnumSpellings& spellings(FlexBackend) {
  static const EnumSpellings names = {spell(FlexBackend::kDeepEp, "deepep"), spell(FlexBackend::kHybridEp, "hybridep"),
                                      spell(FlexBackend::kNcclEp, "ncclep"), spell(FlexBackend::kNative, "native")};
  return names;
}

const EnumSpellings& spellings(LossFusion) {
  static const EnumSpellings names = {spell(LossFusion::kNative, "native"),
                                      spell(LossFusion::kTransformerEngine, "te")};
  return names;
}

const EnumSpellings& spellings(LrDecayStyle) {
  static const EnumSpellings names = {spell(LrDecayStyle::kConstant, "constant"),
                                      spell(LrDecayStyle::kLinear, "linear"), spell(LrDecayStyle::kCosine, "cosine"),
                                      spell(LrDecayStyle::kInverseSquareRoot, "inverse-square-root"),
                                      spell(LrDecayStyle::kWsd, "WSD")};
  return names;
}

const EnumSpellings& spellings(WsdDecayStyle) {
  static const EnumSpellings names = {spell(WsdDecayStyle::kExponential, "exponential"),
                                      spell(WsdDecayStyle::kLinear, "linear"), spell(WsdDecayStyle::kCosine, "cosine"),
                                      spell(WsdDecayStyle::kMinusSqrt, "minus_sqrt")};
  return names;
}

const EnumSpellings& spellings(WeightDecayIncrStyle) {
  static const EnumSpellings names = {spell(WeightDecayIncrStyle::kConstant, "constant"),
                                      spell(WeightDecayIncrStyle::kLinear, "linear"),
                                      spell(WeightDecayIncrStyle::kCosine, "cosine")};
  return names;
}

const EnumSpellings& spellings(OptimizerKind) {
  static const EnumSpellings names = {spell(OptimizerKind::kAdam, "adam"), spell(OptimizerKind::kSgd, "sgd"),
                                      spell(OptimizerKind::kMuon, "muon"), spell(OptimizerKind::kDistMuon, "dist_muon"),
                                      spell(OptimizerKind::kLion, "lion")};
  return names;
}

const EnumSpellings& spellings(DataloaderType) {
  static const EnumSpellings names = {spell(DataloaderType::kSingle, "single"),
                                      spell(DataloaderType::kCyclic, "cyclic"), spell(DataloaderType::kBatch, "batch"),
                                      spell(DataloaderType::kExternal, "external")};
  return names;
}

const EnumSpellings& spellings(DType) {
  static const EnumSpellings names = {spell(DType::kFloat32, "fp32"),
                                      spell(DType::kFloat32, "float32"),
                                      spell(DType::kFloat32, "32"),
                                      spell(DType::kFloat32, "32-true"),
                                      spell(DType::kFloat32, "torch.float32"),
                                      spell(DType::kFloat32, "torch.float"),
                                      spell(DType::kBFloat16, "bf16"),
                                      spell(DType::kBFloat16, "bfloat16"),
                                      spell(DType::kBFloat16, "bf16-mixed"),
                                      spell(DType::kBFloat16, "torch.bfloat16"),
                                      spell(DType::kFloat16, "fp16"),
                                      spell(DType::kFloat16, "float16"),
                                      spell(DType::kFloat16, "16"),
                                      spell(DType::kFloat16, "16-mixed"),
                                      spell(DType::kFloat16, "torch.float16"),
                                      spell(DType::kFloat16, "torch.half"),
                                      spell(DType::kFloat8, "fp8"),
                                      spell(DType::kFloat8, "float8_e4m3fn"),
                                      spell(DType::kFloat8, "float8_e5m2"),
                                      spell(DType::kFloat8, "torch.float8_e4m3fn"),
                                      spell(DType::kFloat8, "torch.float8_e5m2"),
                                      spell(DType::kFloat8, "torch.uint8")};
  return names;
}

const EnumSpellings& spellings(ShardingStrategy) {
  static const EnumSpellings names = {spell(ShardingStrategy::kNoShard, "no_shard"),
                                      spell(ShardingStrategy::kOptim, "optim"),
                                      spell(ShardingStrategy::kOptimGrads, "optim_grads"),
                                      spell(ShardingStrategy::kOptimGradsParams, "optim_grads_params")};
  return names;
}

const EnumSpellings& spellings(DistributedBackend) {
  static const EnumSpellings names = {spell(DistributedBackend::kNccl, "nccl"),
                                      spell(DistributedBackend::kGloo, "gloo")};
  return names;
}

const EnumSpellings& spellings(DeviceKind) {
  static const EnumSpellings names = {spell(DeviceKind::kCpu, "cpu"), spell(DeviceKind::kCuda, "cuda")};
  return names;
}

const EnumSpellings& spellings(RerunMode) {
  static const EnumSpellings names = {spell(RerunMode::kDisabled, "disabled"),
                                      spell(RerunMode::kValidateResults, "validate_results"),
                                      spell(RerunMode::kReportDeterminismStats, "report_determinism_stats")};
  return names;
}

const EnumSpellings& spellings(TimingLogOption) {
  static const EnumSpellings names = {spell(TimingLogOption::kMinMax, "minmax"), spell(TimingLogOption::kMax, "max"),
                                      spell(TimingLogOption::kAll, "all")};
  return names;
}

const EnumSpellings& spellings(CheckpointFormat) {
  static const EnumSpellings names = {
      spell(CheckpointFormat::kTorchDist, "torch_dist"), spell(CheckpointFormat::kTorch, "torch"),
      spell(CheckpointFormat::kTorchDcp, "torch_dcp"), spell(CheckpointFormat::kFsdpDTensor, "fsdp_dtensor")};
  return names;
}

const EnumSpellings& spellings(TokenizerType) {
  static const EnumSpellings names = {spell(TokenizerType::kByteLevel, "ByteLevelTokenizer"),
                                      spell(TokenizerType::kByteLevel, "ByteLevel"),
                                      spell(TokenizerType::kByteLevel, "ByteTokenizer"),
                                      spell(TokenizerType::kHuggingFace, "HuggingFaceTokenizer"),
                                      spell(TokenizerType::kSentencePiece, "SentencePieceTokenizer"),
                                      spell(TokenizerType::kGptSentencePiece, "GPTSentencePieceTokenizer"),
                                      spell(TokenizerType::kLlama2, "Llama2Tokenizer"),
                                      spell(TokenizerType::kGpt2Bpe, "GPT2BPETokenizer"),
                                      spell(TokenizerType::kTikToken, "TikTokenizer"),
                                      spell(TokenizerType::kNull, "NullTokenizer")};
  return names;
}

const EnumSpellings& spellings(ExitSignal) {
  static const EnumSpellings names = {spell(ExitSignal::kTerm, "SIGTERM"), spell(ExitSignal::kInt, "SIGINT"),
                                      spell(ExitSignal::kUsr1, "SIGUSR1"), spell(ExitSignal::kUsr2, "SIGUSR2"),
                                      spell(ExitSignal::kHup, "SIGHUP")};
  return names;
}

}  // namespace pharos::config

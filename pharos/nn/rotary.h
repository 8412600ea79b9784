// Rotary position embedding (Su et al. 2021, eq. 34) with the frequency rescalings of published models.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace pharos::nn {

struct RotaryOptions {
  enum class Scaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn };
  std::int64_t width = 0;  ///< rotated elements of a head, even
  double base = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;  ///< linear: positions are divided by it; Llama 3: long wavelengths are stretched by it
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  std::int64_t original_max_positions = 8192;
  double beta_fast = 32;          ///< YaRN (Peng et al. 2023): frequencies with more rotations than this stay
  double beta_slow = 1;           ///< YaRN: those with fewer are divided by `factor`
  bool rounds_to_integer = true;  ///< YaRN: the bounds of the ramp between them
  double attention_factor = 1;    ///< cosines and sines are multiplied by it
  bool interleaved = false;       ///< rotate pairs (2i, 2i+1) instead of halves (i, i + width/2)
};

/// Frequencies in radians per position. Returns [width / 2] float32.
at::Tensor inverse_frequencies(const RotaryOptions& options);

/// Cosines and sines of the positions of one pass; made once per pass and shared by all layers.
struct RotaryAngles {
  at::Tensor cosine, sine;  ///< [batch or 1, tokens, width / 2] float32
  bool interleaved = false;
};

/// positions: int64 [tokens] or [batch, tokens]; frequencies as inverse_frequencies() gives them.
RotaryAngles rotary_angles(const at::Tensor& frequencies, const at::Tensor& positions, bool interleaved,
                           double attention_factor = 1);

/// YaRN's factor m(factor, scale) = 0.1 scale ln(factor) + 1; 1 for a factor up to 1.
double yarn_scale(double factor, double scale);

/// Rotates elements of each head, from `first` on, by its position and moves heads in front of tokens.
/// input: [batch, tokens, heads, width], last axis contiguous. Returns [batch, heads, tokens, width] contiguous.
at::Tensor apply_rotary(const at::Tensor& input, const RotaryAngles& angles, std::int64_t first = 0);

}  // namespace pharos::nn

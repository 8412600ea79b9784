#include "pharos/nn/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "pharos/base/error.h"
#include "pharos/nn/kernels/kernels.h"

namespace pharos::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Rotation in ATen operations, tokens and heads in the order of `input`: [batch, tokens, heads, width].
at::Tensor rotate(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
                  double direction, std::int64_t first) {
  if (first > 0) {
    const at::Tensor turned =
        rotate(input.narrow(-1, first, input.size(-1) - first), cosine, sine, interleaved, direction, 0);
    return at::cat({input.narrow(-1, 0, first), turned}, -1);
  }
  const std::int64_t half = cosine.size(-1);
  const at::Tensor wide = input.to(at::kFloat);
  const at::Tensor cosines = cosine.unsqueeze(2), sines = sine.unsqueeze(2) * direction;
  const auto turn = [&](const at::Tensor& a, const at::Tensor& b) {
    return std::pair{a * cosines - b * sines, b * cosines + a * sines};
  };
  at::Tensor rotated;
  if (interleaved) {
    const at::Tensor pairs = wide.narrow(-1, 0, 2 * half).unflatten(-1, {half, 2});
    const auto [a, b] = turn(pairs.select(-1, 0), pairs.select(-1, 1));
    rotated = at::stack({a, b}, -1).flatten(-2);
  } else {
    const auto [a, b] = turn(wide.narrow(-1, 0, half), wide.narrow(-1, half, half));
    rotated = at::cat({a, b}, -1);
  }
  if (2 * half < input.size(-1)) rotated = at::cat({rotated, wide.narrow(-1, 2 * half, input.size(-1) - 2 * half)}, -1);
  return rotated.to(input.scalar_type());
}

at::Tensor last_axis_contiguous(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& cosine,
                            const at::Tensor& sine, bool interleaved, std::int64_t first) {
    context->save_for_backward({cosine, sine});
    context->saved_data["interleaved"] = interleaved;
    context->saved_data["first"] = first;
    if (!kernels::fits(input)) return rotate(input, cosine, sine, interleaved, 1, first).transpose(1, 2).contiguous();
    at::Tensor output = at::empty({input.size(0), input.size(2), input.size(1), input.size(3)}, input.options());
    kernels::rotate_to_heads(last_axis_contiguous(input), cosine, sine, interleaved, 1, first, output);
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool interleaved = context->saved_data["interleaved"].toBool();
    const std::int64_t first = context->saved_data["first"].toInt();
    const at::Tensor& grad = gradients[0];
    if (!kernels::fits(grad))
      return {rotate(grad.transpose(1, 2), saved[0], saved[1], interleaved, -1, first), {}, {}, {}, {}};
    at::Tensor input_grad = at::empty({grad.size(0), grad.size(2), grad.size(1), grad.size(3)}, grad.options());
    kernels::rotate_to_tokens(last_axis_contiguous(grad), saved[0], saved[1], interleaved, -1, first, input_grad);
    return {input_grad, {}, {}, {}, {}};
  }
};

// Both in the very operations of transformers (of a number by a tensor it takes the reciprocal): an ulp of a frequency
// is many of an angle far into a text.

/// Short wavelengths stay, long ones are stretched by `factor`, those between are blended.
at::Tensor llama3_frequencies(const at::Tensor& frequencies, const RotaryOptions& options) {
  const auto original = static_cast<double>(options.original_max_positions);
  const at::Tensor wavelength = frequencies.reciprocal() * (2 * std::numbers::pi);
  const at::Tensor stretched = frequencies / options.factor;
  const at::Tensor keep = (wavelength.reciprocal() * original - options.low_frequency_factor) /
                          (options.high_frequency_factor - options.low_frequency_factor);
  const at::Tensor blended = (1 - keep) * frequencies / options.factor + keep * frequencies;
  const at::Tensor is_long = wavelength > original / options.low_frequency_factor;
  const at::Tensor is_short = wavelength < original / options.high_frequency_factor;
  return at::where(is_long, stretched, at::where(is_short, frequencies, blended));
}

/// Index (not whole) of the frequency that makes r rotations over the original context: solves
/// base^(-2i/width) original / 2π = r.
double index_of_rotations(double rotations, const RotaryOptions& options) {
  return static_cast<double>(options.width) *
         std::log(static_cast<double>(options.original_max_positions) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(options.base));
}

/// Frequencies that rotate often within the original context stay, rare ones are divided by `factor`, with a linear
/// ramp of the indices between.
at::Tensor yarn_frequencies(const at::Tensor& wavelengths, const RotaryOptions& options) {
  double low = index_of_rotations(options.beta_fast, options), high = index_of_rotations(options.beta_slow, options);
  if (options.rounds_to_integer) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(options.width - 1));
  if (low == high) high += 0.001;  // as published: a step instead of a division by zero
  const at::Tensor ramp = ((at::arange(options.width / 2, at::kFloat) - low) / (high - low)).clamp_(0, 1);
  const at::Tensor kept = 1 - ramp;
  return (wavelengths * options.factor).reciprocal() * (1 - kept) + wavelengths.reciprocal() * kept;
}

}  // namespace

double yarn_scale(double factor, double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; }

at::Tensor inverse_frequencies(const RotaryOptions& options) {
  PHAROS_CHECK(options.width > 0 && options.width % 2 == 0, "rotary width " + std::to_string(options.width));
  const at::Tensor exponent =
      at::arange(0, options.width, 2, at::kLong).to(at::kFloat) / static_cast<double>(options.width);
  const at::Tensor wavelengths = at::pow(options.base, exponent);  // divided by 2π
  const at::Tensor frequencies = wavelengths.reciprocal();
  switch (options.scaling) {
    case RotaryOptions::Scaling::kNone:
      return frequencies;
    case RotaryOptions::Scaling::kLinear:
      return frequencies / options.factor;
    case RotaryOptions::Scaling::kLlama3:
      return llama3_frequencies(frequencies, options);
    case RotaryOptions::Scaling::kYarn:
      return yarn_frequencies(wavelengths, options);
  }
  throw base::InternalError("unknown rotary scaling");
}

RotaryAngles rotary_angles(const at::Tensor& frequencies, const at::Tensor& positions, bool interleaved,
                           double attention_factor) {
  const at::Tensor rows = positions.dim() == 1 ? positions.unsqueeze(0) : positions;
  const at::Tensor angles = rows.to(at::kFloat).unsqueeze(-1) * frequencies;
  if (attention_factor == 1) return {angles.cos(), angles.sin(), interleaved};
  return {angles.cos().mul_(attention_factor), angles.sin().mul_(attention_factor), interleaved};
}

at::Tensor apply_rotary(const at::Tensor& input, const RotaryAngles& angles, std::int64_t first) {
  return Rotary::apply(input, angles.cosine, angles.sine, angles.interleaved, first);
}

}  // namespace pharos::nn

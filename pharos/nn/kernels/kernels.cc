#include "pharos/nn/kernels/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "pharos/nn/kernels/vector_loops.h"

namespace pharos::nn::kernels {
namespace {

PHAROS_VECTOR_CLONES
float rms_norm_row(const float* x, const float* weight, float* y, std::int64_t width, float epsilon) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) sum += x[i] * x[i];
  const float inverse = 1 / std::sqrt(sum / static_cast<float>(width) + epsilon);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] * inverse * weight[i];
  return inverse;
}

/// dx = r (g w - x r^2 mean(g w x)); dw += g x r.
PHAROS_VECTOR_CLONES
void rms_norm_row_backward(const float* g, const float* x, const float* weight, float inverse, float* dx, float* dw,
                           std::int64_t width) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    sum += g[i] * weight[i] * x[i];
    dw[i] += g[i] * x[i] * inverse;
  }
  const float pull = sum / static_cast<float>(width) * inverse * inverse;
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) dx[i] = inverse * (g[i] * weight[i] - x[i] * pull);
}

PHAROS_VECTOR_CLONES
void rotate_halves_row(const float* x, const float* cosine, const float* sine, float direction, std::int64_t half,
                       std::int64_t width, float* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], s = sine[i] * direction;
    y[i] = a * cosine[i] - b * s;
    y[i + half] = b * cosine[i] + a * s;
  }
  for (std::int64_t i = 2 * half; i < width; ++i) y[i] = x[i];
}

void rotate_pairs_row(const float* x, const float* cosine, const float* sine, float direction, std::int64_t half,
                      std::int64_t width, float* y) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1], s = sine[i] * direction;
    y[2 * i] = a * cosine[i] - b * s;
    y[2 * i + 1] = b * cosine[i] + a * s;
  }
  for (std::int64_t i = 2 * half; i < width; ++i) y[i] = x[i];
}

/// input and output as [batch, tokens, heads, width], each with its own strides.
void rotate(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
            float direction, std::int64_t first, const at::Tensor& output) {
  const std::int64_t batch = input.size(0), tokens = input.size(1), heads = input.size(2);
  const std::int64_t width = input.size(3) - first;
  const std::int64_t half = cosine.size(-1);
  const std::int64_t angle_batch_stride = cosine.size(0) == 1 ? 0 : tokens * half;
  auto* const row = interleaved ? rotate_pairs_row : rotate_halves_row;
  const float* const in = input.const_data_ptr<float>();
  const float* const cosines = cosine.const_data_ptr<float>();
  const float* const sines = sine.const_data_ptr<float>();
  float* const out = output.data_ptr<float>();
  const auto is = input.strides(), os = output.strides();
  at::parallel_for(0, batch * tokens, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t sample = i / tokens, token = i % tokens;
      const std::int64_t angle = sample * angle_batch_stride + token * half;
      for (std::int64_t head = 0; head < heads; ++head) {
        const float* const x = in + sample * is[0] + token * is[1] + head * is[2];
        float* const y = out + sample * os[0] + token * os[1] + head * os[2];
        std::copy(x, x + first, y);
        row(x + first, cosines + angle, sines + angle, direction, half, width, y + first);
      }
    }
  });
}

PHAROS_VECTOR_CLONES
void swiglu_row(const float* x, float weight, float* y, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) y[i] = x[i] / (1 + expf(-x[i])) * x[i + width] * weight;
}

/// With s = sigmoid(gate): dgate = g w up s (1 + gate (1 - s)); dup = g w gate s. Returns d/dw = Σ g up gate s.
PHAROS_VECTOR_CLONES
float swiglu_row_backward(const float* g, const float* x, float weight, float* dx, std::int64_t width) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) {
    const float gate = x[i], up = x[i + width], sigmoid = 1 / (1 + expf(-gate));
    dx[i] = g[i] * weight * up * sigmoid * (1 + gate * (1 - sigmoid));
    dx[i + width] = g[i] * weight * gate * sigmoid;
    sum += g[i] * up * gate * sigmoid;
  }
  return sum;
}

/// Rows of so many elements that are worth a thread.
std::int64_t grain_of(std::int64_t width) {
  constexpr std::int64_t kElements = 8192;
  return std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, width));
}

PHAROS_VECTOR_CLONES
void add_row(float* target, const float* source, std::int64_t width) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) target[i] += source[i];
}

}  // namespace

bool fits(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat && tensor.is_cpu(); }

void rms_norm_forward(const at::Tensor& input, const at::Tensor& weight, double epsilon, at::Tensor& output,
                      at::Tensor& inverse_rms) {
  const std::int64_t rows = input.size(0), width = input.size(1);
  const float* const x = input.const_data_ptr<float>();
  const float* const w = weight.const_data_ptr<float>();
  float* const y = output.data_ptr<float>();
  float* const inverse = inverse_rms.data_ptr<float>();
  at::parallel_for(0, rows, 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      inverse[i] = rms_norm_row(x + i * width, w, y + i * width, width, static_cast<float>(epsilon));
    }
  });
}

void rms_norm_backward(const at::Tensor& output_grad, const at::Tensor& input, const at::Tensor& weight,
                       const at::Tensor& inverse_rms, at::Tensor& input_grad, at::Tensor& weight_grad) {
  const std::int64_t rows = input.size(0), width = input.size(1);
  const float* const g = output_grad.const_data_ptr<float>();
  const float* const x = input.const_data_ptr<float>();
  const float* const w = weight.const_data_ptr<float>();
  const float* const inverse = inverse_rms.const_data_ptr<float>();
  float* const dx = input_grad.data_ptr<float>();
  // A fixed number of parts, summed in order: the result does not depend on the number of threads.
  constexpr std::int64_t kParts = 16;
  const std::int64_t part_rows = (rows + kParts - 1) / kParts;
  std::vector<float> partial(static_cast<std::size_t>(kParts * width), 0.0F);
  at::parallel_for(0, kParts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      for (std::int64_t i = part * part_rows; i < std::min(rows, (part + 1) * part_rows); ++i) {
        rms_norm_row_backward(g + i * width, x + i * width, w, inverse[i], dx + i * width,
                              partial.data() + part * width, width);
      }
    }
  });
  if (!weight_grad.defined()) return;
  for (std::int64_t part = 0; part < kParts; ++part)
    add_row(weight_grad.data_ptr<float>(), partial.data() + part * width, width);
}

void rotate_to_heads(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
                     float direction, std::int64_t first, at::Tensor& output) {
  rotate(input, cosine, sine, interleaved, direction, first, output.transpose(1, 2));
}

void rotate_to_tokens(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
                      float direction, std::int64_t first, at::Tensor& output) {
  rotate(input.transpose(1, 2), cosine, sine, interleaved, direction, first, output);
}

void swiglu_forward(const at::Tensor& input, const at::Tensor& weights, at::Tensor& output) {
  const std::int64_t width = output.size(1);
  const float* const x = input.const_data_ptr<float>();
  const float* const weight = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  float* const y = output.data_ptr<float>();
  at::parallel_for(0, output.size(0), grain_of(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      swiglu_row(x + 2 * i * width, weight != nullptr ? weight[i] : 1, y + i * width, width);
    }
  });
}

void swiglu_backward(const at::Tensor& output_grad, const at::Tensor& input, const at::Tensor& weights,
                     at::Tensor& input_grad, at::Tensor& weights_grad) {
  const std::int64_t width = output_grad.size(1);
  const float* const g = output_grad.const_data_ptr<float>();
  const float* const x = input.const_data_ptr<float>();
  const float* const weight = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  float* const dx = input_grad.data_ptr<float>();
  float* const dweight = weights.defined() ? weights_grad.data_ptr<float>() : nullptr;
  at::parallel_for(0, output_grad.size(0), grain_of(width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float sum = swiglu_row_backward(g + i * width, x + 2 * i * width, weight != nullptr ? weight[i] : 1,
                                            dx + 2 * i * width, width);
      if (dweight != nullptr) dweight[i] = sum;
    }
  });
}

void add_rows(at::Tensor& table, const at::Tensor& indices, const at::Tensor& rows) {
  const std::int64_t width = table.size(1);
  const std::int64_t* const index = indices.const_data_ptr<std::int64_t>();
  const float* const source = rows.const_data_ptr<float>();
  float* const target = table.data_ptr<float>();
  // Columns are divided over the threads, so that the order of additions into one element is always that of the rows.
  constexpr std::int64_t kColumns = 64;
  at::parallel_for(0, (width + kColumns - 1) / kColumns, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kColumns, count = std::min(width, end * kColumns) - first;
    for (std::int64_t i = 0; i < indices.numel(); ++i)
      add_row(target + index[i] * width + first, source + i * width + first, count);
  });
}

}  // namespace pharos::nn::kernels

#include "pharos/nn/kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

// One body, compiled for several instruction sets and chosen when the program is loaded. Sanitizers do not see through
// the resolver that does the choosing, so their builds take the plain body.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define PHAROS_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define PHAROS_VECTOR_CLONES
#endif

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
            float direction, const at::Tensor& output) {
  const std::int64_t batch = input.size(0), tokens = input.size(1), heads = input.size(2), width = input.size(3);
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
        row(in + sample * is[0] + token * is[1] + head * is[2], cosines + angle, sines + angle, direction, half, width,
            out + sample * os[0] + token * os[1] + head * os[2]);
      }
    }
  });
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
                     float direction, at::Tensor& output) {
  rotate(input, cosine, sine, interleaved, direction, output.transpose(1, 2));
}

void rotate_to_tokens(const at::Tensor& input, const at::Tensor& cosine, const at::Tensor& sine, bool interleaved,
                      float direction, at::Tensor& output) {
  rotate(input.transpose(1, 2), cosine, sine, interleaved, direction, output);
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

#include "pharos/nn/attention/causal.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "pharos/base/error.h"
#include "pharos/nn/kernels/kernels.h"
#include "pharos/nn/kernels/vector_loops.h"

// Blocks lie with a row for each key and a column for each query: what is known of a query (maximum, sum, …) is then a
// row of numbers, and every loop over a block runs along it without a reduction. All products read rows as they lie,
// but for one transposed copy of the keys or values of a head and of each block of queries.
namespace pharos::nn::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kQueries = 64;  // columns of a block; beyond the last query they hold numbers nobody reads
constexpr std::int64_t kKeys = 256;    // rows of a block, at most

using Row = std::array<float, kQueries>;
using Buffer = std::vector<float>;

/// The rows of one head: `stride` elements apart.
struct Rows {
  float* data;
  std::int64_t stride;

  float* at(std::int64_t row) const { return data + row * stride; }
};

/// product = a b, or product += a b. a: [m, k]; b: [k, n].
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const Rows& a, const Rows& b, bool adds,
              const Rows& product) {
#ifdef CPUBLAS_BRGEMM_F32F32F32
  at::native::cpublas::brgemm(m, n, k, a.stride, b.stride, product.stride, adds, a.data, b.data, product.data);
#else
  using at::native::TransposeType;  // column-major: the transposed product
  at::native::cpublas::gemm(TransposeType::NoTranspose, TransposeType::NoTranspose, n, m, k, 1.0F, b.data, b.stride,
                            a.data, a.stride, adds ? 1.0F : 0.0F, product.data, product.stride);
#endif
}

/// target[c][r] = factor source[r][c].
PHAROS_VECTOR_CLONES
void transpose(const float* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns, float factor,
               float* target, std::int64_t target_stride) {
  constexpr std::int64_t kTile = 16;
  for (std::int64_t c = 0; c < columns; c += kTile) {
    const std::int64_t last = std::min(columns, c + kTile);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = c; i < last; ++i) target[i * target_stride + r] = factor * source[r * source_stride + i];
    }
  }
}

/// The first column that sees this row of a block. `diagonal`: index of the first query less that of the first key.
std::int64_t first_column(std::int64_t row, std::int64_t diagonal) { return std::max<std::int64_t>(0, row - diagonal); }

PHAROS_VECTOR_CLONES
void raise_maximum(const float* scores, std::int64_t rows, std::int64_t diagonal, float* maximum) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = scores + r * kQueries;
    const std::int64_t first = first_column(r, diagonal);
#pragma omp simd
    for (std::int64_t c = first; c < kQueries; ++c) maximum[c] = row[c] > maximum[c] ? row[c] : maximum[c];
  }
}

/// scores = exp(scores - shift), zero where a query does not see the key; adds each column to `sum`.
PHAROS_VECTOR_CLONES
void exponentials(float* scores, std::int64_t rows, std::int64_t diagonal, const float* shift, float* sum) {
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * kQueries;
    const std::int64_t first = first_column(r, diagonal);
    for (std::int64_t c = 0; c < first; ++c) row[c] = 0;
#pragma omp simd
    for (std::int64_t c = first; c < kQueries; ++c) {
      row[c] = expf(row[c] - shift[c]);
      sum[c] += row[c];
    }
  }
}

/// sum *= factor, and each row of `table` [rows, queries]: what was found with a smaller maximum.
PHAROS_VECTOR_CLONES
void rescale(const float* before, const float* after, float* sum, float* table, std::int64_t rows) {
  float factor[kQueries];
#pragma omp simd
  for (std::int64_t c = 0; c < kQueries; ++c) {
    factor[c] = expf(before[c] - after[c]);
    sum[c] *= factor[c];
  }
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t c = 0; c < kQueries; ++c) table[r * kQueries + c] *= factor[c];
  }
}

/// gradient = probability (gradient - dot): through the softmax, where dot = Σ gradient · probability.
PHAROS_VECTOR_CLONES
void through_softmax(const float* probabilities, const float* dot, std::int64_t rows, float* gradients) {
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t c = 0; c < kQueries; ++c) {
      const std::int64_t i = r * kQueries + c;
      gradients[i] = probabilities[i] * (gradients[i] - dot[c]);
    }
  }
}

PHAROS_VECTOR_CLONES
float dot_product(const float* a, const float* b, std::int64_t width) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

struct Shape {
  std::int64_t tokens, width, value_width;
};

/// Rows of head `index` (of batch × heads) of a tensor [batch, heads, tokens, width].
Rows head_of(const at::Tensor& tensor, std::int64_t index) {
  const std::int64_t heads = tensor.size(1);
  auto* data = const_cast<float*>(tensor.const_data_ptr<float>());
  return {data + index / heads * tensor.stride(0) + index % heads * tensor.stride(1), tensor.stride(2)};
}

/// Calls body(first key, keys, diagonal) for each block of keys that queries from `first_query` on see.
template <typename Body>
void for_each_key_block(std::int64_t first_query, std::int64_t num_queries, const Body& body) {
  const std::int64_t end = first_query + num_queries;
  for (std::int64_t key = 0; key < end; key += kKeys) body(key, std::min(kKeys, end - key), first_query - key);
}

/// One thread's memory for the forward pass of heads.
struct ForwardHead {
  Shape shape;
  float scale;
  Buffer transposed_values = Buffer(static_cast<std::size_t>(shape.value_width * shape.tokens));
  Buffer queries = Buffer(static_cast<std::size_t>(shape.width * kQueries));
  Buffer sums = Buffer(static_cast<std::size_t>(shape.value_width * kQueries));
  Buffer scores = Buffer(static_cast<std::size_t>(kKeys * kQueries));

  void run(const Rows& query, const Rows& key, const Rows& value, const Rows& output, float* log_of_sum) {
    transpose(value.data, value.stride, shape.tokens, shape.value_width, 1, transposed_values.data(), shape.tokens);
    for (std::int64_t first = 0; first < shape.tokens; first += kQueries) {
      const std::int64_t count = std::min(kQueries, shape.tokens - first);
      transpose(query.at(first), query.stride, count, shape.width, scale, queries.data(), kQueries);
      Row maximum, sum{};
      maximum.fill(-std::numeric_limits<float>::infinity());
      for_each_key_block(first, count, [&](std::int64_t first_key, std::int64_t keys, std::int64_t diagonal) {
        const Row before = maximum;
        multiply(keys, kQueries, shape.width, {key.at(first_key), key.stride}, {queries.data(), kQueries}, false,
                 {scores.data(), kQueries});
        raise_maximum(scores.data(), keys, diagonal, maximum.data());
        if (first_key > 0) rescale(before.data(), maximum.data(), sum.data(), sums.data(), shape.value_width);
        exponentials(scores.data(), keys, diagonal, maximum.data(), sum.data());
        multiply(shape.value_width, kQueries, keys, {transposed_values.data() + first_key, shape.tokens},
                 {scores.data(), kQueries}, first_key > 0, {sums.data(), kQueries});
      });
      for (std::int64_t c = 0; c < count; ++c) {
        const auto column = static_cast<std::size_t>(c);
        log_of_sum[first + c] = maximum[column] + std::log(sum[column]);
        const float factor = 1 / sum[column];
        float* row = output.at(first + c);
        for (std::int64_t i = 0; i < shape.value_width; ++i) row[i] = sums[i * kQueries + c] * factor;
      }
    }
  }
};

/// One thread's memory for the backward pass of heads.
struct BackwardHead {
  struct Inputs {
    Rows query, key, value, output, output_grad;
    const float* log_of_sum;
  };
  struct Gradients {
    Rows query, key, value;
  };

  Shape shape;
  float scale;
  Buffer transposed_keys = Buffer(static_cast<std::size_t>(shape.width * shape.tokens));
  Buffer queries = Buffer(static_cast<std::size_t>(shape.width * kQueries));
  Buffer output_grads = Buffer(static_cast<std::size_t>(shape.value_width * kQueries));
  Buffer query_grads = Buffer(static_cast<std::size_t>(shape.width * kQueries));
  Buffer probabilities = Buffer(static_cast<std::size_t>(kKeys * kQueries));
  Buffer score_grads = Buffer(static_cast<std::size_t>(kKeys * kQueries));

  void run(const Inputs& in, const Gradients& gradients) {
    const std::int64_t width = shape.width, value_width = shape.value_width;
    transpose(in.key.data, in.key.stride, shape.tokens, width, 1, transposed_keys.data(), shape.tokens);
    for (std::int64_t first = 0; first < shape.tokens; first += kQueries) {
      const std::int64_t count = std::min(kQueries, shape.tokens - first);
      transpose(in.query.at(first), in.query.stride, count, width, scale, queries.data(), kQueries);
      transpose(in.output_grad.at(first), in.output_grad.stride, count, value_width, 1, output_grads.data(), kQueries);
      Row shift{}, dot{}, unused{};
      for (std::int64_t c = 0; c < count; ++c) {
        const auto column = static_cast<std::size_t>(c);
        shift[column] = in.log_of_sum[first + c];
        dot[column] = dot_product(in.output.at(first + c), in.output_grad.at(first + c), value_width);
      }
      for_each_key_block(first, count, [&](std::int64_t first_key, std::int64_t keys, std::int64_t diagonal) {
        const Rows scores{probabilities.data(), kQueries}, grads{score_grads.data(), kQueries};
        multiply(keys, kQueries, width, {in.key.at(first_key), in.key.stride}, {queries.data(), kQueries}, false,
                 scores);
        exponentials(scores.data, keys, diagonal, shift.data(), unused.data());
        multiply(keys, value_width, count, scores, {in.output_grad.at(first), in.output_grad.stride}, true,
                 {gradients.value.at(first_key), gradients.value.stride});
        multiply(keys, kQueries, value_width, {in.value.at(first_key), in.value.stride},
                 {output_grads.data(), kQueries}, false, grads);
        through_softmax(scores.data, dot.data(), keys, grads.data);
        multiply(keys, width, count, grads, {in.query.at(first), in.query.stride}, true,
                 {gradients.key.at(first_key), gradients.key.stride});
        multiply(width, kQueries, keys, {transposed_keys.data() + first_key, shape.tokens}, grads, first_key > 0,
                 {query_grads.data(), kQueries});
      });
      for (std::int64_t c = 0; c < count; ++c) {
        float* row = gradients.query.at(first + c);
        for (std::int64_t i = 0; i < width; ++i) row[i] = query_grads[i * kQueries + c] * scale;
      }
    }
    for (std::int64_t key = 0; key < shape.tokens; ++key) {
      for (std::int64_t i = 0; i < width; ++i) gradients.key.at(key)[i] *= scale;
    }
  }
};

Shape shape_of(const at::Tensor& query, const at::Tensor& value) {
  return {query.size(2), query.size(3), value.size(3)};
}

/// [batch, heads, tokens, width] that lies as [batch, tokens, heads, width].
at::Tensor by_token(const at::Tensor& like, bool zero) {
  const std::vector<std::int64_t> sizes{like.size(0), like.size(2), like.size(1), like.size(3)};
  return (zero ? at::zeros(sizes, like.options()) : at::empty(sizes, like.options())).transpose(1, 2);
}

at::Tensor with_contiguous_rows(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 && tensor.stride(-2) >= tensor.size(-1) ? tensor : tensor.contiguous();
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given_query, const at::Tensor& given_key,
                            const at::Tensor& given_value, double scale) {
    const at::Tensor query = with_contiguous_rows(given_query), key = with_contiguous_rows(given_key),
                     value = with_contiguous_rows(given_value);
    at::Tensor output = by_token(value, false);
    const at::Tensor log_of_sum = at::empty({query.size(0), query.size(1), query.size(2)}, query.options());
    const Shape shape = shape_of(query, value);
    auto* logs = log_of_sum.mutable_data_ptr<float>();
    at::parallel_for(0, query.size(0) * query.size(1), 1, [&](std::int64_t begin, std::int64_t end) {
      ForwardHead work{shape, static_cast<float>(scale)};
      for (std::int64_t i = begin; i < end; ++i) {
        work.run(head_of(query, i), head_of(key, i), head_of(value, i), head_of(output, i), logs + i * shape.tokens);
      }
    });
    context->save_for_backward({query, key, value, output, log_of_sum});
    context->saved_data["scale"] = scale;
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2], &output = saved[3];
    const auto scale = static_cast<float>(context->saved_data["scale"].toDouble());
    const at::Tensor output_grad = with_contiguous_rows(gradients[0]);
    const at::Tensor query_grad = by_token(query, false), key_grad = by_token(key, true),
                     value_grad = by_token(value, true);
    const Shape shape = shape_of(query, value);
    const auto* logs = saved[4].const_data_ptr<float>();
    at::parallel_for(0, query.size(0) * query.size(1), 1, [&](std::int64_t begin, std::int64_t end) {
      BackwardHead work{shape, scale};
      for (std::int64_t i = begin; i < end; ++i) {
        work.run({head_of(query, i), head_of(key, i), head_of(value, i), head_of(output, i), head_of(output_grad, i),
                  logs + i * shape.tokens},
                 {head_of(query_grad, i), head_of(key_grad, i), head_of(value_grad, i)});
      }
    });
    return {query_grad, key_grad, value_grad, {}};
  }
};

}  // namespace

bool fits_causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return fits(query) && fits(key) && fits(value) && query.size(2) == key.size(2);
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double scale) {
  PHAROS_CHECK(query.sizes() == key.sizes() && value.dim() == 4 && value.sizes().slice(0, 3) == key.sizes().slice(0, 3),
               "queries and keys of one shape and a value for each key wanted");
  return CausalAttention::apply(query, key, value, scale);
}

}  // namespace pharos::nn::kernels

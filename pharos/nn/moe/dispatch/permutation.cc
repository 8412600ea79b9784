#include "pharos/nn/moe/dispatch/permutation.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "pharos/base/error.h"

namespace pharos::nn::moe {
namespace {

constexpr std::int64_t kGrainBytes = 1 << 16;  // of copied rows that are worth a thread

std::int64_t row_width(const at::Tensor& table) {
  std::int64_t width = 1;
  for (const auto length : table.sizes().slice(1)) width *= length;
  return width;
}

std::vector<std::int64_t> shape_of_rows(const at::Tensor& table, std::int64_t count) {
  std::vector<std::int64_t> shape = table.sizes().vec();
  shape[0] = count;
  return shape;
}

std::int64_t grain_of(std::int64_t row_bytes) {
  return std::max<std::int64_t>(1, kGrainBytes / std::max<std::int64_t>(1, row_bytes));
}

/// A counting sort.
Permutation sort_on_host(const at::Tensor& choices, std::int64_t num_bins, std::optional<std::int64_t> rows_per_bin) {
  const std::int64_t num_tokens = choices.size(0), width = choices.size(1);
  const std::int64_t num_rows = rows_per_bin ? num_bins * *rows_per_bin : num_tokens * width;
  Permutation order{at::full({num_rows}, -1, choices.options()), at::full({num_rows}, -1, choices.options()),
                    at::full(choices.sizes(), -1, choices.options()), at::zeros({num_bins}, choices.options())};
  const auto* bins = choices.const_data_ptr<std::int64_t>();
  auto* tokens = order.tokens.mutable_data_ptr<std::int64_t>();
  auto* sources = order.choices.mutable_data_ptr<std::int64_t>();
  auto* rows = order.rows.mutable_data_ptr<std::int64_t>();
  auto* counts = order.counts.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < num_tokens * width; ++i) {
    if (bins[i] >= 0) ++counts[bins[i]];
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(num_bins));
  std::int64_t first = 0;
  for (std::int64_t bin = 0; bin < num_bins; ++bin) {
    PHAROS_CHECK(!rows_per_bin || counts[bin] <= *rows_per_bin, "more choices than rows");
    next[static_cast<std::size_t>(bin)] = first;
    first += rows_per_bin ? *rows_per_bin : counts[bin];
  }
  for (std::int64_t i = 0; i < num_tokens * width; ++i) {
    if (bins[i] < 0) continue;
    const std::int64_t row = next[static_cast<std::size_t>(bins[i])]++;
    tokens[row] = i / width;
    sources[row] = i;
    rows[i] = row;
  }
  return order;
}

at::Tensor take_on_host(const at::Tensor& table, const at::Tensor& indices) {
  at::Tensor output = at::empty(shape_of_rows(table, indices.numel()), table.options());
  const auto row_bytes = row_width(table) * table.element_size();
  const auto* from = static_cast<const std::byte*>(table.const_data_ptr());
  auto* to = static_cast<std::byte*>(output.mutable_data_ptr());
  const auto* index = indices.const_data_ptr<std::int64_t>();
  at::parallel_for(0, indices.numel(), grain_of(row_bytes), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (index[i] >= 0) {
        std::memcpy(to + i * row_bytes, from + index[i] * row_bytes, static_cast<std::size_t>(row_bytes));
      } else {
        std::memset(to + i * row_bytes, 0, static_cast<std::size_t>(row_bytes));
      }
    }
  });
  return output;
}

/// to[c] = Σ_j table[index[j]][c].
template <typename Scalar>
void sum_row(const Scalar* table, const std::int64_t* index, std::int64_t count, std::int64_t width, Scalar* to,
             at::opmath_type<Scalar>* sum) {
  std::fill(sum, sum + width, at::opmath_type<Scalar>(0));
  for (std::int64_t j = 0; j < count; ++j) {
    if (index[j] < 0) continue;
    const Scalar* row = table + index[j] * width;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) sum[c] += static_cast<at::opmath_type<Scalar>>(row[c]);
  }
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) to[c] = static_cast<Scalar>(sum[c]);
}

at::Tensor sum_on_host(const at::Tensor& table, const at::Tensor& indices) {
  at::Tensor output = at::empty(shape_of_rows(table, indices.size(0)), table.options());
  const std::int64_t width = row_width(table), count = indices.size(1);
  const auto* index = indices.const_data_ptr<std::int64_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, table.scalar_type(), "sum_rows", [&] {
    const auto* from = table.const_data_ptr<scalar_t>();
    auto* to = output.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, indices.size(0), grain_of(count * width * table.element_size()),
                     [=](std::int64_t begin, std::int64_t end) {
                       std::vector<at::opmath_type<scalar_t>> sum(static_cast<std::size_t>(width));
                       for (std::int64_t t = begin; t < end; ++t) {
                         sum_row(from, index + t * count, count, width, to + t * width, sum.data());
                       }
                     });
  });
  return output;
}

at::Tensor take_by_operations(const at::Tensor& table, const at::Tensor& indices) {
  if (table.size(0) == 0) return at::zeros(shape_of_rows(table, indices.numel()), table.options());
  std::vector<std::int64_t> mask_shape(static_cast<std::size_t>(table.dim()), 1);
  mask_shape[0] = indices.numel();
  return table.index_select(0, indices.clamp_min(0)).masked_fill_(indices.lt(0).view(mask_shape), 0);
}

}  // namespace

at::Tensor count_choices(const at::Tensor& choices, std::int64_t num_bins) {
  const auto flat = choices.reshape(-1);
  return at::zeros({num_bins + 1}, choices.options())
      .scatter_add_(0, flat.masked_fill(flat.lt(0), num_bins), at::ones_like(flat))
      .narrow(0, 0, num_bins);
}

Permutation sort_choices_by_operations(const at::Tensor& choices, std::int64_t num_bins,
                                       std::optional<std::int64_t> rows_per_bin) {
  const std::int64_t num_choices = choices.numel(), width = choices.size(1);
  const auto flat = choices.reshape(-1);
  // Choices without a bin come last, in a bin of their own.
  const auto [bins, order] = flat.masked_fill(flat.lt(0), num_bins).sort(/*stable=*/true, 0, /*descending=*/false);
  const auto counts = count_choices(bins, num_bins + 1);
  const auto places = at::arange(num_choices, choices.options());
  auto row = places;
  auto source = order;
  if (rows_per_bin) {
    const std::int64_t num_rows = num_bins * *rows_per_bin;
    const auto first = counts.cumsum(0) - counts;
    row = (bins * *rows_per_bin + places - first.index_select(0, bins)).clamp_max(num_rows);
    source = at::full({num_rows + 1}, -1, choices.options()).scatter_(0, row, order).narrow(0, 0, num_rows);
  } else {
    source = order.masked_fill(bins.eq(num_bins), -1);
  }
  const auto rows = at::empty_like(flat).scatter_(0, order, row).masked_fill_(flat.lt(0), -1);
  return {source.div(width, "floor"), source, rows.view(choices.sizes()), counts.narrow(0, 0, num_bins)};
}

Permutation sort_choices(const at::Tensor& choices, std::int64_t num_bins, std::optional<std::int64_t> rows_per_bin) {
  const auto contiguous = choices.contiguous();
  return choices.device().is_cpu() ? sort_on_host(contiguous, num_bins, rows_per_bin)
                                   : sort_choices_by_operations(contiguous, num_bins, rows_per_bin);
}

at::Tensor take_rows(const at::Tensor& table, const at::Tensor& indices) {
  return table.device().is_cpu() ? take_on_host(table.contiguous(), indices.contiguous())
                                 : take_by_operations(table, indices);
}

at::Tensor sum_rows(const at::Tensor& table, const at::Tensor& indices) {
  if (table.device().is_cpu()) return sum_on_host(table.contiguous(), indices.contiguous());
  at::Tensor sum =
      at::zeros(shape_of_rows(table, indices.size(0)), table.options().dtype(at::toOpMathType(table.scalar_type())));
  for (const auto& place : indices.unbind(1)) sum.add_(take_by_operations(table, place.contiguous()));
  return sum.to(table.scalar_type());
}

}  // namespace pharos::nn::moe

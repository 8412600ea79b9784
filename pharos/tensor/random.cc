#include "pharos/tensor/random.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "pharos/base/error.h"

namespace pharos::tensor {
namespace {

std::uint64_t mix(std::uint64_t value) {  // finaliser of SplitMix64 (Steele et al. 2014)
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

using Block = std::array<std::uint32_t, 4>;

Block draw_block(std::uint64_t index, std::uint64_t key) {
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
                {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
}

/// Two independent standard normals of two random words (Box and Muller 1958). The first uniform is never zero.
std::array<float, 2> box_muller(std::uint32_t first, std::uint32_t second) {
  const float uniform = (static_cast<float>(first >> 8) + 0.5F) * 0x1p-24F;
  const float angle = static_cast<float>(second >> 8) * (0x1p-24F * 2 * std::numbers::pi_v<float>);
  const float radius = std::sqrt(-2 * std::log(uniform));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// Calls visit(destination, global index of its first element, length) for every innermost run of the slice.
template <typename Visit>
void for_each_run(float* out, const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& global_shape,
                  const std::vector<std::int64_t>& offset, const Visit& visit) {
  PHAROS_CHECK(shape.size() == global_shape.size() && shape.size() == offset.size(),
               "ranks of slice and tensor differ");
  std::int64_t run = shape.empty() ? 1 : shape.back();
  std::int64_t num_runs = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) num_runs *= shape[axis];
  if (run == 0 || num_runs == 0) return;
  at::parallel_for(0, num_runs, std::max<std::int64_t>(1, 16384 / run), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint64_t index = shape.empty() ? 0 : offset.back();
      std::int64_t rest = i;
      std::uint64_t stride = shape.empty() ? 1 : global_shape.back();
      for (int axis = static_cast<int>(shape.size()) - 2; axis >= 0; --axis) {
        index += static_cast<std::uint64_t>(rest % shape[axis] + offset[axis]) * stride;
        rest /= shape[axis];
        stride *= global_shape[axis];
      }
      visit(out + i * run, index, run);
    }
  });
}

/// Writes value(block, lane) of every element of a run; a block serves four neighbouring global indices.
template <typename Expand>
void fill_run(float* out, std::uint64_t first, std::int64_t count, std::uint64_t key, const Expand& expand) {
  std::int64_t done = 0;
  while (done < count) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(done);
    const std::array<float, 4> values = expand(draw_block(index / 4, key));
    for (std::uint64_t lane = index % 4; lane < 4 && done < count; ++lane) out[done++] = values[lane];
  }
}

void check_fillable(const at::Tensor& out) {
  PHAROS_CHECK(out.is_contiguous() && out.scalar_type() == at::kFloat && out.is_cpu(),
               "contiguous float32 on the CPU wanted");
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const char character : name) hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3ULL;
  return mix(mix(seed) ^ hash);
}

void fill_normal(at::Tensor& out, double standard_deviation, std::uint64_t key,
                 const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset) {
  check_fillable(out);
  const auto scale = static_cast<float>(standard_deviation);
  for_each_run(out.data_ptr<float>(), out.sizes().vec(), global_shape, offset,
               [&](float* run, std::uint64_t first, std::int64_t count) {
                 fill_run(run, first, count, key, [scale](const Block& words) {
                   const auto a = box_muller(words[0], words[1]);
                   const auto b = box_muller(words[2], words[3]);
                   return std::array<float, 4>{a[0] * scale, a[1] * scale, b[0] * scale, b[1] * scale};
                 });
               });
}

void fill_uniform(at::Tensor& out, double low, double high, std::uint64_t key,
                  const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset) {
  check_fillable(out);
  const auto first = static_cast<float>(low), step = static_cast<float>((high - low) * 0x1p-24);
  for_each_run(out.data_ptr<float>(), out.sizes().vec(), global_shape, offset,
               [&](float* run, std::uint64_t begin, std::int64_t count) {
                 fill_run(run, begin, count, key, [first, step](const Block& words) {
                   std::array<float, 4> values;
                   for (int lane = 0; lane < 4; ++lane)
                     values[lane] = first + static_cast<float>(words[lane] >> 8) * step;
                   return values;
                 });
               });
}

at::Tensor dropout_mask(const std::vector<std::int64_t>& shape, double probability, std::uint64_t key,
                        const std::vector<std::int64_t>& global_shape, const std::vector<std::int64_t>& offset) {
  PHAROS_CHECK(probability >= 0 && probability < 1, "dropout probability " + std::to_string(probability));
  at::Tensor mask = at::empty(shape, at::kFloat);
  const double threshold = probability * 0x1p32;
  const auto kept = static_cast<float>(1 / (1 - probability));
  for_each_run(mask.data_ptr<float>(), shape, global_shape, offset,
               [&](float* run, std::uint64_t first, std::int64_t count) {
                 fill_run(run, first, count, key, [threshold, kept](const Block& words) {
                   std::array<float, 4> values;
                   for (int lane = 0; lane < 4; ++lane) values[lane] = words[lane] < threshold ? 0.0F : kept;
                   return values;
                 });
               });
  return mask;
}

}  // namespace pharos::tensor

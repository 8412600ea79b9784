// Rectangles of a tensor's index space. Knows no torch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace pharos::checkpoint {

/// Indices [begin[axis], begin[axis] + shape[axis]) on every axis.
struct Rectangle {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> shape;
  bool operator==(const Rectangle&) const = default;
};

/// What two rectangles of the same number of axes have in common, or nullopt when that is nothing.
std::optional<Rectangle> intersection(const Rectangle& a, const Rectangle& b);

/// The fewest rectangles that together are the elements [first, first + count) of a row-major tensor of `shape`, in
/// order and each contiguous: of a matrix the rest of a row, whole rows, the start of a row. The range must lie inside.
std::vector<Rectangle> rectangles_of_range(const std::vector<std::int64_t>& shape, std::int64_t first,
                                           std::int64_t count);

}  // namespace pharos::checkpoint

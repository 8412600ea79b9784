#include "pharos/checkpoint/parts/rectangle.h"

#include <algorithm>

#include "pharos/base/error.h"

namespace pharos::checkpoint {
namespace {

struct Splitter {
  const std::vector<std::int64_t>& shape;
  std::vector<Rectangle> rectangles = {};
  std::vector<std::int64_t> index = {};  ///< on the axes before the current one

  std::int64_t elements_behind(std::size_t axis) const {
    std::int64_t count = 1;
    for (std::size_t i = axis + 1; i < shape.size(); ++i) count *= shape[i];
    return count;
  }

  void add_rows(std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    Rectangle rectangle{index, std::vector<std::int64_t>(index.size(), 1)};
    rectangle.begin.push_back(begin);
    rectangle.shape.push_back(end - begin);
    for (std::size_t axis = rectangle.begin.size(); axis < shape.size(); ++axis) {
      rectangle.begin.push_back(0);
      rectangle.shape.push_back(shape[axis]);
    }
    rectangles.push_back(std::move(rectangle));
  }

  void split_row(std::int64_t row, std::int64_t begin, std::int64_t end) {
    index.push_back(row);
    split(begin, end);
    index.pop_back();
  }

  /// [begin, end) of the elements behind `index`.
  void split(std::int64_t begin, std::int64_t end) {
    const std::int64_t row = elements_behind(index.size());
    const std::int64_t first = begin / row, last = end / row;  // `last` is the row that is not whole, if any
    const bool starts_inside = begin % row != 0, ends_inside = end % row != 0;
    if (first == last && starts_inside) return split_row(first, begin % row, end % row);
    if (starts_inside) split_row(first, begin % row, row);
    add_rows(first + (starts_inside ? 1 : 0), last);
    if (ends_inside) split_row(last, 0, end % row);
  }
};

}  // namespace

std::optional<Rectangle> intersection(const Rectangle& a, const Rectangle& b) {
  Rectangle common = a;
  for (std::size_t axis = 0; axis < a.begin.size(); ++axis) {
    common.begin[axis] = std::max(a.begin[axis], b.begin[axis]);
    common.shape[axis] = std::min(a.begin[axis] + a.shape[axis], b.begin[axis] + b.shape[axis]) - common.begin[axis];
    if (common.shape[axis] <= 0) return std::nullopt;
  }
  return common;
}

std::vector<Rectangle> rectangles_of_range(const std::vector<std::int64_t>& shape, std::int64_t first,
                                           std::int64_t count) {
  std::int64_t elements = 1;
  for (const std::int64_t length : shape) elements *= length;
  PHAROS_CHECK(first >= 0 && count >= 0 && first <= elements && count <= elements - first,
               std::to_string(count) + " elements from " + std::to_string(first) + " on of a tensor of " +
                   std::to_string(elements));
  if (count == 0) return {};
  if (shape.empty()) return {Rectangle{}};
  Splitter splitter{shape};
  splitter.split(first, first + count);
  return std::move(splitter.rectangles);
}

}  // namespace pharos::checkpoint

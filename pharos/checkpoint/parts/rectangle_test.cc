#include "pharos/checkpoint/parts/rectangle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pharos/base/error.h"

namespace pharos::checkpoint {
namespace {

using ::testing::ElementsAre;
using Shape = std::vector<std::int64_t>;

TEST(Rectangle, RangesOfAMatrix) {
  const Shape shape{4, 5};
  EXPECT_THAT(rectangles_of_range(shape, 0, 20), ElementsAre(Rectangle{{0, 0}, {4, 5}}));
  EXPECT_THAT(rectangles_of_range(shape, 5, 10), ElementsAre(Rectangle{{1, 0}, {2, 5}}));
  EXPECT_THAT(rectangles_of_range(shape, 6, 3), ElementsAre(Rectangle{{1, 1}, {1, 3}}));
  EXPECT_THAT(rectangles_of_range(shape, 6, 4), ElementsAre(Rectangle{{1, 1}, {1, 4}}));
  EXPECT_THAT(rectangles_of_range(shape, 10, 2), ElementsAre(Rectangle{{2, 0}, {1, 2}}));
  EXPECT_THAT(rectangles_of_range(shape, 3, 4), ElementsAre(Rectangle{{0, 3}, {1, 2}}, Rectangle{{1, 0}, {1, 2}}));
  EXPECT_THAT(rectangles_of_range(shape, 3, 14),
              ElementsAre(Rectangle{{0, 3}, {1, 2}}, Rectangle{{1, 0}, {2, 5}}, Rectangle{{3, 0}, {1, 2}}));
  EXPECT_THAT(rectangles_of_range(shape, 20, 0), ElementsAre());
  EXPECT_THAT(rectangles_of_range({}, 0, 1), ElementsAre(Rectangle{}));
  EXPECT_THAT(rectangles_of_range({0, 3}, 0, 0), ElementsAre());
}

TEST(Rectangle, RangeOutsideIsRefused) {
  struct Case {
    std::int64_t first, count;
  };
  for (const Case& item : {Case{-1, 2}, Case{0, 21}, Case{20, 1}, Case{3, -1}, Case{1, INT64_MAX}})
    EXPECT_THROW(rectangles_of_range({4, 5}, item.first, item.count), base::InternalError) << item.first;
}

// Every range of some shapes: in order, each element once, and no more than 2 (axes - 1) + 1 rectangles.
TEST(Rectangle, EveryRangeIsCoveredInOrder) {
  for (const Shape& shape : {Shape{7}, Shape{3, 4}, Shape{4, 1}, Shape{1, 4}, Shape{2, 3, 2}, Shape{2, 1, 2, 3}}) {
    std::int64_t elements = 1;
    for (const std::int64_t length : shape) elements *= length;
    for (std::int64_t first = 0; first <= elements; ++first) {
      for (std::int64_t count = 0; count <= elements - first; ++count) {
        std::int64_t next = first;
        const auto rectangles = rectangles_of_range(shape, first, count);
        for (const Rectangle& rectangle : rectangles) {
          std::int64_t begin = 0, numel = 1;
          for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            ASSERT_LE(rectangle.begin[axis] + rectangle.shape[axis], shape[axis]);
            begin = begin * shape[axis] + rectangle.begin[axis];
            numel *= rectangle.shape[axis];
          }
          ASSERT_EQ(begin, next);
          next += numel;
        }
        EXPECT_EQ(next, first + count);
        EXPECT_LE(rectangles.size(), 2 * (shape.size() - 1) + 1);
      }
    }
  }
}

TEST(Rectangle, Intersection) {
  const Rectangle a{{1, 2}, {3, 4}};
  EXPECT_EQ(intersection(a, {{2, 0}, {5, 3}}), (Rectangle{{2, 2}, {2, 1}}));
  EXPECT_EQ(intersection(a, a), a);
  EXPECT_EQ(intersection(a, {{4, 2}, {1, 1}}), std::nullopt);
  EXPECT_EQ(intersection(a, {{2, 3}, {0, 1}}), std::nullopt);
  EXPECT_EQ(intersection({}, {}), Rectangle{});
}

}  // namespace
}  // namespace pharos::checkpoint

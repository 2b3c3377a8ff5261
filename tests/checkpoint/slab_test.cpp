#include "checkpoint/slab.hpp"

#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

// Flat indices of a box's elements, in row-major order.
std::vector<std::size_t> elements_of(const h5::Part& part, const std::vector<std::int64_t>& shape) {
    std::vector<std::size_t> elements = {0};
    for (std::size_t d = 0; d < shape.size(); ++d) {
        std::vector<std::size_t> finer;
        for (const std::size_t outer : elements) {
            for (hsize_t i = 0; i < part.count[d]; ++i) {
                finer.push_back(outer * static_cast<std::size_t>(shape[d]) + part.start[d] + i);
            }
        }
        elements = finer;
    }
    return elements;
}

TEST(Slabs, CoverEveryRangeInOrder) {
    const std::vector<std::vector<std::int64_t>> shapes = {{},     {1},    {7},       {3, 5},
                                                           {1, 4}, {4, 1}, {2, 3, 4}, {2, 1, 3, 2}};
    for (const std::vector<std::int64_t>& shape : shapes) {
        const std::size_t elems = elems_of(shape);
        for (std::size_t begin = 0; begin < elems; ++begin) {
            for (std::size_t end = begin + 1; end <= elems; ++end) {
                std::size_t next = begin;
                std::size_t slabs = 0;
                while (next < end) {
                    const Slab slab = first_slab(shape, next, end);
                    ASSERT_GT(slab.elems, 0U);
                    const auto elements = elements_of(slab.part, shape);
                    ASSERT_EQ(elements.size(), slab.elems);
                    for (const std::size_t element : elements) {
                        ASSERT_EQ(element, next++);
                    }
                    ++slabs;
                }
                EXPECT_EQ(next, end);
                EXPECT_LE(slabs, shape.empty() ? 1 : 2 * shape.size() - 1);
            }
        }
    }
}

TEST(Slabs, NeedElementsOfTheArray) {
    const std::vector<std::int64_t> shape = {3, 5};
    EXPECT_THROW(first_slab(shape, 2, 2), ContractError);
    EXPECT_THROW(first_slab(shape, 2, 16), ContractError);
}

}  // namespace
}  // namespace nearstep::checkpoint

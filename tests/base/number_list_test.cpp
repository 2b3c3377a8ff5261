// Tests lists of numbers with ranges, as messages and files have them.
#include "base/number_list.hpp"

#include "support/test.hpp"

#include <limits>
#include <numeric>

namespace nearstep {
namespace {

std::vector<int> first_numbers(int count) {
    std::vector<int> numbers(static_cast<std::size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

TEST(NumberList, RangesAreReadAsTheyWereWritten) {
    const std::vector<int> numbers = {0, 1, 2, 5, 7, 8};
    EXPECT_EQ(print_ranges(ranges_of(numbers)), "0-2,5,7-8");
    EXPECT_EQ(parse_ranges("0-2,5,7-8"), ranges_of(numbers));
    EXPECT_EQ(parse_ranges("0,1,2,5,7,8"), ranges_of(numbers));  // as version 0.2.0 wrote them
    EXPECT_EQ(numbers_in(ranges_of(numbers)), numbers);
    const std::vector<int> largest = {std::numeric_limits<int>::max()};  // as a foreign file's name
    EXPECT_EQ(numbers_in(ranges_of(largest)), largest);
    EXPECT_EQ(parse_ranges(""), std::vector<NumberRange>());
    for (const char* wrong :
         {"1,", ",1", "2-1", "1,1", "-1", "1-", "0-2,2", "1x2", "5000000000", "a"}) {
        EXPECT_FALSE(parse_ranges(wrong)) << wrong;
    }
}

TEST(NumberList, MessagesNameEightRanksAndHowManyMore) {
    EXPECT_EQ(name_ranks({3}), "rank 3");
    EXPECT_EQ(name_ranks({0, 1, 2, 5}), "ranks 0-2,5");
    EXPECT_EQ(name_ranks(first_numbers(1024)), "ranks 0-1023");
    std::vector<int> even = first_numbers(512);
    std::ranges::for_each(even, [](int& rank) { rank *= 2; });
    EXPECT_EQ(name_ranks(even), "ranks 0,2,4,6,8,10,12,14 and 504 more");
    EXPECT_EQ(first_of(first_numbers(8)), "0, 1, 2, 3, 4, 5, 6, 7");
    EXPECT_EQ(first_of(first_numbers(4096)), "0, 1, 2, 3, 4, 5, 6, 7 and 4088 more");
}

TEST(NumberList, BriefListsGrowWithWhatDiffers) {
    std::vector<int> nodes;
    for (int rank = 0; rank < 4096; ++rank) {
        nodes.push_back(rank / 8);
    }
    const std::string ones = joined(std::vector<int>(4096, 1), ",");
    EXPECT_EQ(brief_list(ones), "1x4096");
    EXPECT_EQ(brief_list(joined(nodes, ",")), "0-511x8");
    EXPECT_EQ(brief_list("1,1,2,2"), "1,1,2,2");  // as version 0.2.0 wrote it
    EXPECT_EQ(brief_list("0.5,1e-05,0,0,0,0,0,0,2"), "0.5,1e-05,0x6,2");
    for (const std::string& list :
         {ones, joined(nodes, ","), std::string("0.5,1e-05,0,0,0,0,0,0,2"),
          std::string("3,4,5,4,4,5,5,6,6,7"), std::string()}) {
        EXPECT_EQ(written_out(brief_list(list), 1 << 20), list);
        EXPECT_EQ(brief_list(brief_list(list)), brief_list(list));
    }
    EXPECT_FALSE(written_out("1x4097", 4096));
    EXPECT_FALSE(written_out("1x4096,1", 4096));
    for (const char* wrong : {"1x0", "x3", "1x", "1x-2", "1,,2", "1,", "0-2000000000x2000000000"}) {
        EXPECT_FALSE(written_out(wrong, 4096)) << wrong;
    }
}

}  // namespace
}  // namespace nearstep

// Tests that values packed for another rank come out as they went in.
#include "base/packed.hpp"

#include "support/test.hpp"

namespace nearstep {
namespace {

struct Leaf {
    std::string name = {};
    std::optional<std::string> word = std::nullopt;

    friend bool operator==(const Leaf&, const Leaf&) = default;
};

template <typename Archive>
void list(Archive& archive, Leaf& leaf) {
    archive(leaf.name, leaf.word);
}

TEST(Packed, ComesOutAsItWentIn) {
    const std::vector<Leaf> leaves = {{std::string("a\0b", 3), "word"}, {"", std::nullopt}, {}};
    const std::array<std::vector<int>, 2> numbers = {{{1, 2}, {}}};
    const std::string bytes = packed(leaves, 2.5, numbers);
    std::vector<Leaf> same(7, {"other", "word"});
    double half = 0;
    std::array<std::vector<int>, 2> others;
    unpack(bytes, same, half, others);
    EXPECT_EQ(same, leaves);
    EXPECT_EQ(half, 2.5);
    EXPECT_EQ(others, numbers);
    EXPECT_THROW(unpack(std::string_view(bytes).substr(0, bytes.size() - 1), same, half, others),
                 ContractError);
}

}  // namespace
}  // namespace nearstep

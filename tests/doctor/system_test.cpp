// Tests how text from /proc and /sys is read.
#include "doctor/system.hpp"

#include "support/test.hpp"

namespace nearstep::doctor {
namespace {

TEST(Features, AreWholeWordsOfTheProcessorsFlags) {
    const std::string x86 =
        "processor\t: 0\nmodel name\t: avx512f in a name\nflags\t\t: fpu avx2 avx512_bf16\n\n"
        "processor\t: 1\nflags\t\t: other\n";
    EXPECT_THAT(find_features(x86, {"avx2", "avx512f", "avx512_bf16", "avx"}),
                ElementsAre("avx2", "avx512_bf16"));
    EXPECT_THAT(find_features("Features\t: fp asimd sve\n", {"sve", "asimd"}),
                ElementsAre("sve", "asimd"));
    EXPECT_THAT(find_features("", {"avx2"}), IsEmpty());
}

TEST(ChosenWord, StandsInBrackets) {
    EXPECT_EQ(chosen_word("always [madvise] never\n"), "madvise");
    EXPECT_EQ(chosen_word("[always] madvise never\n"), "always");
    EXPECT_EQ(chosen_word("always madvise never\n"), "");
    EXPECT_EQ(chosen_word(""), "");
}

}  // namespace
}  // namespace nearstep::doctor

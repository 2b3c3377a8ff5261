// Tests how other programs are started, and what is said of those that fail.
#include "base/command_line.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace nearstep {

namespace {

TEST(CommandLine, PassesEachWordAsItIs) {
    for (const char* word :
         {"", "two words", "it's", "''", "'\\''", "$HOME `id` \"$0\"", "a\nb\\", "*;&|<>#!"}) {
        const CommandEnd end = run_command({"printf", "%s,%s", word, "-n"}, StandardError::dropped);
        EXPECT_TRUE(end.is_success());
        EXPECT_EQ(end.output, std::string(word) + ",-n");
    }
}

TEST(CommandLine, SaysWhatTheProgramSaysAndHowItEnds) {
    const std::vector<std::string> words{"sh", "-c", "echo said; echo wrong >&2; exit 3"};
    const CommandEnd all = run_command(words, StandardError::in_output);
    EXPECT_EQ(all.code, 3);
    EXPECT_EQ(all.output, "said\nwrong\n");
    EXPECT_EQ(run_command(words, StandardError::dropped).output, "said\n");
    EXPECT_FALSE(run_command({"/no/such/program"}, StandardError::dropped).is_success());
    EXPECT_EQ(run_command({"sh", "-c", "kill -9 $$"}, StandardError::dropped).code, 128 + 9);
    EXPECT_EQ(run_command({"cat"}, StandardError::dropped).output, "");
}

}  // namespace

}  // namespace nearstep

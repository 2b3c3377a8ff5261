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
        EXPECT_TRUE(end.is_success);
        EXPECT_EQ(end.output, std::string(word) + ",-n");
    }
}

TEST(CommandLine, SaysWhatTheProgramSaysAndHowItEnds) {
    const std::vector<std::string> words{"sh", "-c", "echo said; echo wrong >&2; exit 3"};
    const CommandEnd all = run_command(words, StandardError::in_output);
    EXPECT_FALSE(all.is_success);
    EXPECT_EQ(all.output, "said\nwrong\n");
    EXPECT_EQ(run_command(words, StandardError::dropped).output, "said\n");
    EXPECT_FALSE(run_command({"/no/such/program"}, StandardError::dropped).is_success);
}

}  // namespace

}  // namespace nearstep

// Tests the record of the newest checkpoint.
#include "checkpoint/newest.hpp"

#include "checkpoint/sample_checkpoint.hpp"
#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

using NewestCheckpoint = InFolder;

TEST_F(NewestCheckpoint, IsRecordedWhenItIsPublished) {
    const int attempt = next_attempt(folder(), 20);
    publish(folder(), sample_description(20), attempt, sample_ranges(),
            write_rank_files(folder(), 20, attempt, 1), root());
    const auto newest = read_newest(root());
    ASSERT_TRUE(newest);
    EXPECT_EQ(newest->run, sample_description(20).run);
    EXPECT_EQ(newest->step, 20);
    EXPECT_EQ(newest->folder, folder());
}

TEST_F(NewestCheckpoint, IsUnknownIfTheRecordIsOfAnotherForm) {
    EXPECT_FALSE(read_newest(root()));
    for (const char* line : {"", "nearstep newest checkpoint of run a step 4 in /x",
                             "nearstep newest checkpoint of run a step -4 in /x\n",
                             "nearstep newest checkpoint of run a step 4 in x\n",
                             "nearstep newest checkpoint of run a step 4 in /x\nmore\n"}) {
        put_bytes(root() + "/newest-checkpoint", line);
        EXPECT_FALSE(read_newest(root())) << line;
    }
}

TEST_F(NewestCheckpoint, AndItsFilesAreAsPrivateAsTheState) {
    write_checkpoint(folder(), 20, 1);
    write_newest(root(), {.run = "a", .step = 20, .folder = folder()});
    for (const std::string& name : files()) {
        const auto mode = fs::status(folder() + "/" + name).permissions();
        EXPECT_EQ(mode & fs::perms::others_all, fs::perms::none) << name;
    }
    EXPECT_EQ(fs::status(root() + "/newest-checkpoint").permissions() & fs::perms::others_all,
              fs::perms::none);
}

}  // namespace
}  // namespace nearstep::checkpoint

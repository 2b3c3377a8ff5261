// Tests which run owns a folder of checkpoints, and which runs get folders of their own.
#include "checkpoint/owner.hpp"

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/sample_checkpoint.hpp"
#include "support/test.hpp"

namespace nearstep::checkpoint {
namespace {

constexpr const char* kFirst = "00000000000000aa";
constexpr const char* kSecond = "00000000000000bb";

class Owner : public InFolder {
protected:
    std::string claim(const std::string& run, const std::set<std::string>& replaced = {}) const {
        return claim_folder(folder(), {.line = {.run = run}, .replaced = replaced});
    }
    std::string own_folder(const std::string& run) const { return folder() + "/run-" + run; }
};

TEST_F(Owner, IsTheFirstRunAndOthersGetFoldersOfTheirOwn) {
    EXPECT_EQ(claim(kFirst), folder());
    EXPECT_EQ(claim(kSecond), own_folder(kSecond));
    EXPECT_EQ(claim_folder(own_folder(kSecond), {.line = {.run = kSecond}}), own_folder(kSecond));
    EXPECT_EQ(claim(kFirst), folder());
    EXPECT_THAT(folders_of_runs(folder()), ElementsAre(folder(), own_folder(kSecond)));
}

TEST_F(Owner, StaysTheFirstOfRunsThatBeginTogether) {
    std::vector<std::string> claimed(8);
    {
        std::vector<std::jthread> runs;
        for (std::size_t i = 0; i < claimed.size(); ++i) {
            runs.emplace_back(
                [&, i] { claimed[i] = claim("00000000000000c" + std::to_string(i)); });
        }
    }
    EXPECT_EQ(std::ranges::count(claimed, folder()), 1);
    EXPECT_EQ(std::set(claimed.begin(), claimed.end()).size(), claimed.size());
}

TEST_F(Owner, IsReplacedByTheRunThatReplacedItsState) {
    claim(kFirst);
    take_over_folder(folder(), {.line = {.run = kSecond}});
    EXPECT_EQ(claim(kFirst), folder());
    take_over_folder(folder(), {.line = {.run = kSecond}, .replaced = {kFirst}});
    EXPECT_EQ(claim(kSecond), folder());
    EXPECT_EQ(claim(kFirst), own_folder(kFirst));
}

TEST_F(Owner, OfAFolderIsTheRunOfItsCheckpoints) {
    write_checkpoint(folder(), 20, 1);
    const std::string run = sample_description(20).run;
    EXPECT_EQ(claim(kSecond), own_folder(kSecond));
    EXPECT_FALSE(fs::exists(folder() + "/owner"));
    EXPECT_EQ(claim(run), folder());
    EXPECT_TRUE(fs::exists(folder() + "/owner"));
    write_checkpoint(folder(), 40, 1);
    EXPECT_FALSE(fs::exists(folder() + "/owner"));  // the checkpoint tells
    EXPECT_EQ(claim(kSecond), own_folder(kSecond));
}

TEST_F(Owner, IsNoParentWhoseRunMayGoOnElsewhere) {
    write_checkpoint(folder(), 20, 1);
    const store::Lineage branch =
        store::branch_off({.run = sample_description(20).run}, 20, kFirst);
    EXPECT_EQ(claim_folder(folder(), {.line = branch}), own_folder(kFirst));
    const Claimant replacing{.line = branch, .replaced = {sample_description(20).run}};
    EXPECT_EQ(claim_folder(folder(), replacing), folder());
    EXPECT_EQ(claim_folder(folder(), {.line = branch}), folder());
    release_folder(folder(), branch);  // not yet: only the parent's checkpoint is there
    EXPECT_EQ(claim_folder(folder(), {.line = branch}), folder());
}

TEST_F(Owner, OfADamagedCheckpointIsNobody) {
    const std::string index = write_checkpoint(folder(), 20, 1);
    fs::resize_file(index, 600);
    EXPECT_EQ(claim(kFirst), folder());
}

TEST_F(Owner, IsNotKnownFromAFileOfAnotherForm) {
    fs::create_directories(folder());
    for (const char* words : {"", "mine\n", "nearstep checkpoints of run ../../../etc\n"}) {
        put_bytes(folder() + "/owner", words);
        EXPECT_EQ(claim(kFirst), own_folder(kFirst));
        EXPECT_EQ(claim(kFirst, {kSecond}), own_folder(kFirst));
    }
    fs::remove(folder() + "/owner");
    put_bytes(root() + "/elsewhere", "nearstep checkpoints of run " + std::string(kFirst) + "\n");
    fs::create_symlink(root() + "/elsewhere", folder() + "/owner");
    EXPECT_EQ(claim(kFirst), own_folder(kFirst));
}

TEST_F(Owner, NeverNamesAFolderOutside) {
    claim(kFirst);
    const std::string own = claim("../../../tmp/x");
    EXPECT_EQ(fs::path(own).parent_path(), folder());
    EXPECT_NE(run_of_folder(own), "");
}

TEST_F(Owner, FindsTheCheckpointsOfAllRuns) {
    write_checkpoint(folder(), 20, 1);
    const std::string own = claim(kSecond);
    write_checkpoint(own, 40, 1);
    EXPECT_THAT(find_all(folder()),
                ElementsAre(own + "/step-00000040.h5", folder() + "/step-00000020.h5"));
}

}  // namespace
}  // namespace nearstep::checkpoint

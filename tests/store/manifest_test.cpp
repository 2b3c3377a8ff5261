#include "store/manifest.hpp"

#include "base/error.hpp"
#include "store/scratch_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace nearstep::store {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Commit commit_of(std::int64_t step, std::int64_t generation) {
    return {.step = step,
            .generation = generation,
            .loss_scale = 1.0 / 3,
            .good_steps = step,
            .norm = generation == 7 ? 2.0 / 7 : 0};
}

Manifest sample() {
    return {.run = "0123456789abcdef",
            .model = "gpt layers=2 width = 140",
            .layout = "ranks=2 devices=1,1",
            .seed = ~std::uint64_t{0},
            .steps = 40,
            .commits = {commit_of(8, 7), commit_of(6, 6)}};
}

TEST(ManifestTest, ReadsBackWhatItReplaced) {
    const ScratchFolder folder;
    ManifestFile file(folder.file("rank-0.manifest"));
    EXPECT_EQ(file.read(), std::nullopt);
    for (std::size_t commits = 0; commits <= 2; ++commits) {
        Manifest manifest = sample();
        manifest.commits.resize(commits);
        file.replace(manifest);
        EXPECT_EQ(file.read(), manifest);
    }
    file.remove();
    EXPECT_EQ(file.read(), std::nullopt);
    EXPECT_NO_THROW(file.remove());
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ManifestTest, FindsEveryFlippedBitAndEveryTruncation) {
    const ScratchFolder folder;
    ManifestFile file(folder.file("rank-0.manifest"));
    file.replace(sample());
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file.path()));
    for (std::int64_t byte = 0; byte < size; ++byte) {
        flip_bit(file.path(), byte);
        EXPECT_THAT(message_of<IoError>([&] { file.read(); }), HasSubstr(file.path())) << byte;
        flip_bit(file.path(), byte);
    }
    EXPECT_EQ(file.read(), sample());
    for (std::int64_t left = size - 1; left >= 0; --left) {
        std::filesystem::resize_file(file.path(), static_cast<std::uintmax_t>(left));
        EXPECT_THROW(file.read(), IoError) << left;
    }
}

TEST(ManifestTest, NamesAFolderThatIsMissing) {
    const ScratchFolder folder;
    ManifestFile file(folder.file("gone/rank-0.manifest"));
    EXPECT_THAT(message_of<IoError>([&] { file.replace(sample()); }), HasSubstr("gone"));
}

TEST(AddCommitTest, KeepsTheGenerationInTheOtherPlace) {
    Manifest manifest;
    add_commit(manifest, commit_of(0, 0));
    add_commit(manifest, commit_of(1, 1));
    EXPECT_THAT(manifest.commits, ElementsAre(commit_of(1, 1), commit_of(0, 0)));
    add_commit(manifest, commit_of(2, 2));
    EXPECT_THAT(manifest.commits, ElementsAre(commit_of(2, 2), commit_of(1, 1)));
}

TEST(AddCommitTest, MovesTheStepOfAGenerationWhenAStepIsSkipped) {
    Manifest manifest;
    add_commit(manifest, commit_of(1, 1));
    add_commit(manifest, commit_of(2, 2));
    add_commit(manifest, commit_of(3, 2));
    EXPECT_THAT(manifest.commits, ElementsAre(commit_of(3, 2), commit_of(1, 1)));
}

TEST(AddCommitTest, ForgetsWhatARunThatWentBackWillOverwrite) {
    Manifest manifest;
    add_commit(manifest, commit_of(7, 7));
    add_commit(manifest, commit_of(3, 3));
    EXPECT_THAT(manifest.commits, ElementsAre(commit_of(3, 3)));
}

std::vector<Commit> common(const std::vector<std::vector<Commit>>& of_ranks) {
    return common_commits(of_ranks);
}

TEST(CommonCommitsTest, AreWhatAllRanksHoldNewestFirst) {
    const std::vector<Commit> at_5 = {commit_of(5, 5), commit_of(4, 4)};
    const std::vector<Commit> at_4 = {commit_of(4, 4), commit_of(3, 3)};
    EXPECT_EQ(common({at_5}), at_5);
    EXPECT_EQ(common({at_5, at_5, at_5}), at_5);
    EXPECT_THAT(common({at_5, at_4, at_5}), ElementsAre(commit_of(4, 4)));
    EXPECT_THAT(common({at_4, at_5}), ElementsAre(commit_of(4, 4)));
    EXPECT_THAT(common({at_5, {}}), IsEmpty());
    EXPECT_THAT(common({at_5, {commit_of(9, 9)}}), IsEmpty());
}

TEST(CommonCommitsTest, TakeTheEarlierStepWhereOneRankHasSkippedTheNext) {
    const std::vector<Commit> skipped = {commit_of(6, 4), commit_of(4, 3)};
    const std::vector<Commit> before = {commit_of(5, 4), commit_of(4, 3)};
    EXPECT_EQ(common({skipped, before}), before);
    EXPECT_EQ(common({before, skipped}), before);
}

}  // namespace
}  // namespace nearstep::store

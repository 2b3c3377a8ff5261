// Tests the manifest of a state, also of older and newer versions.
#include "store/manifest.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "support/test.hpp"

#include <sys/stat.h>

namespace nearstep::store {
namespace {

Commit commit_of(std::int64_t step, std::int64_t generation) {
    return {.step = step,
            .generation = generation,
            .loss_scale = 1.0 / 3,
            .good_steps = step,
            .norm = generation == 7 ? 2.0 / 7 : 0,
            .missed = generation == 7 ? MissedUpdates{3, 0, 2, 2} : MissedUpdates{}};
}

Manifest sample() {
    return {.line = {.run = "0123456789abcdef",
                     .parents = {{.run = "aaaaaaaaaaaaaaaa", .step = 12},
                                 {.run = "bbbbbbbbbbbbbbbb", .step = 5}}},
            .model = "gpt layers=2 width = 140",
            .layout = "ranks=2 devices=1,1",
            .seed = ~std::uint64_t{0},
            .data = "00000000000000dd",
            .dtype = "bf16",
            .threads = "2,1",
            .steps = 40,
            .state = "cccccccccccccccc",
            .replaces = "dddddddddddddddd",
            .files = {"rank-0.device-0.state", "rank-0.device-1.state"},
            .copy = {{0, 2}, {5, 5}},
            .places = {{0, "host-a /mnt/a folder"}, {17, "host-b /mnt"}},
            .programs = {{.step = 8, .bytes = 99, .xxh3 = ~std::uint64_t{0}},
                         {.step = 3, .bytes = 0, .xxh3 = 0}},
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

// A folder of csd.path may be one that others write to.
TEST(ManifestTest, IsReadFromARegularFileOnlyAndFollowsNoLinkWhenItIsWritten) {
    const ScratchFolder folder;
    const std::string thesis = folder.write("thesis.tex", "a thesis");
    ManifestFile file(folder.file("rank-0.manifest"));
    std::filesystem::create_symlink(thesis, file.path());
    std::filesystem::create_symlink(thesis, file.path() + ".partial");
    EXPECT_THAT(message_of<DamageError>([&] { file.read(); }), states(file.path(), "link"));
    file.replace(sample());
    EXPECT_EQ(file.read(), sample());
    file.remove();
    ASSERT_EQ(::mkfifo(file.path().c_str(), 0600), 0);
    EXPECT_THAT(message_of<DamageError>([&] { file.read(); }), states(file.path(), "regular"));
    file.remove();
    std::filesystem::create_hard_link(thesis, file.path() + ".partial");
    file.replace(sample());
    file.remove();
    put_bytes(file.path(), "nearstep manifest 1\n");
    std::filesystem::resize_file(file.path(), std::uintmax_t{1} << 40U);  // sparse
    EXPECT_THROW(file.read(), DamageError);
    EXPECT_EQ(bytes_of(thesis), "a thesis");
}

TEST(ManifestTest, SaysThatANewerVersionWroteIt) {
    const ScratchFolder folder;
    ManifestFile file(folder.file("rank-0.manifest"));
    const auto said_of = [&](const std::string& content) {
        put_bytes(file.path(), content);
        return message_of<DamageError>([&] { file.read(); });
    };
    const auto sealed = [](const std::string& content) {
        return content + "xxh3 = " + to_hex(xxh3(std::as_bytes(std::span(content)))) + "\n";
    };
    const std::string content = print_manifest(sample());
    const std::string lines = content.substr(0, content.rfind("xxh3 = "));
    EXPECT_THAT(said_of("nearstep manifest 2\nall = new\n"), states("newer version"));
    EXPECT_THAT(said_of(sealed(lines + "colour = blue\n")), states("newer version"));
    EXPECT_THAT(said_of(lines + "colour = blue\n"), HasSubstr("damaged"));
    EXPECT_THAT(said_of("nearstep manifest 1\n"), HasSubstr("damaged"));
    EXPECT_THAT(said_of("nearstep manifest 0\n"), HasSubstr("damaged"));
    EXPECT_THAT(said_of(""), HasSubstr("damaged"));
}

// Only the digest of the text says whether it is a manifest's, and others can compute it.
TEST(ManifestTest, RefusesTextThatNoMessageMayHave) {
    for (const char* wrong : {"a\033[2Jb", "a\rb", "a\177b"}) {
        Manifest manifest = sample();
        manifest.model = wrong;
        EXPECT_EQ(parse_manifest(print_manifest(manifest)), std::nullopt);
        manifest = sample();
        manifest.files[1] = wrong;
        EXPECT_EQ(parse_manifest(print_manifest(manifest)), std::nullopt);
    }
    Manifest manifest = sample();
    manifest.places[0] = "host /a\nb";  // a folder may have such a name
    const auto read = parse_manifest(print_manifest(manifest));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->places.at(0), "host /a?b");
}

TEST(ManifestTest, ReadsTheListsOfVersion020) {
    std::string content = print_manifest(sample());
    const auto swap = [&](const std::string& now, const std::string& before) {
        content.replace(content.find(now), now.size(), before);
    };
    swap("copy = 0-2,5\n", "copy = 0,1,2,5\n");
    swap("place of 0 = host-a /mnt/a folder\nplace of 17 = host-b /mnt\n",
         "place = host-a /mnt/a folder/rank-0.manifest\nplace = host-b /mnt/rank-1.manifest\n");
    content.resize(content.rfind("xxh3 = "));
    content += "xxh3 = " + to_hex(xxh3(std::as_bytes(std::span(content)))) + "\n";
    Manifest manifest = sample();
    manifest.places = {{0, "host-a /mnt/a folder"}, {1, "host-b /mnt"}};
    EXPECT_EQ(parse_manifest(content), manifest);
}

TEST(ManifestTest, PlacesFewRanksAndEachInSeveralManifests) {
    EXPECT_TRUE(ranks_placed_by(0, 1).empty());
    EXPECT_EQ(ranks_placed_by(2, 4), std::vector({3, 0, 1}));
    EXPECT_EQ(ranks_placed_by(10, 16), std::vector({11, 12, 13, 14, 2}));
    EXPECT_LE(ranks_placed_by(0, 1 << 20).size(), 22U);
}

TEST(ManifestTest, FindsEveryFlippedBitAndEveryTruncation) {
    const ScratchFolder folder;
    ManifestFile file(folder.file("rank-0.manifest"));
    file.replace(sample());
    const auto size = static_cast<std::int64_t>(std::filesystem::file_size(file.path()));
    for (std::int64_t byte = 0; byte < size; ++byte) {
        flip_bit(file.path(), byte);
        EXPECT_THAT(message_of<DamageError>([&] { file.read(); }), HasSubstr(file.path())) << byte;
        flip_bit(file.path(), byte);
    }
    EXPECT_EQ(file.read(), sample());
    for (std::int64_t left = size - 1; left >= 0; --left) {
        std::filesystem::resize_file(file.path(), static_cast<std::uintmax_t>(left));
        EXPECT_THROW(file.read(), IoError) << left;
    }
}

// The checksum is right, so only the numbers reveal the fault.
TEST(ManifestTest, RefusesCommitsThatNoRunMakes) {
    const ScratchFolder folder;
    ManifestFile file(folder.file("rank-0.manifest"));
    for (const Commit& wrong :
         {Commit{.step = -1}, Commit{.generation = -1}, Commit{.good_steps = -1},
          Commit{.loss_scale = std::numeric_limits<double>::infinity()},
          Commit{.norm = std::numeric_limits<double>::infinity()}, Commit{.norm = -0.25},
          Commit{.loss_scale = 0}, Commit{.generation = std::numeric_limits<std::int64_t>::max()},
          Commit{.step = std::numeric_limits<std::int64_t>::max()},
          Commit{.generation = 2, .missed = {0, 3}}}) {
        Manifest manifest = sample();
        manifest.commits = {wrong};
        file.replace(manifest);
        EXPECT_THAT(message_of<IoError>([&] { file.read(); }), HasSubstr(file.path()));
    }
}

TEST(ManifestTest, OfAnOlderFormatNamesNoParentAndIsReadAsItIs) {
    const ScratchFolder folder;
    const std::string path = folder.file("rank-0.manifest");
    const std::string content =
        "nearstep manifest 1\nrun = 0123456789abcdef\nmodel = m\nlayout = ranks=1\nseed = 1\n"
        "steps = 40\ncommit = step 3 generation 3 loss_scale 1 good_steps 0\n";
    std::ofstream(path) << content
                        << "xxh3 = " << to_hex(xxh3(std::as_bytes(std::span<const char>(content))))
                        << "\n";
    const auto read = ManifestFile(path).read();
    ASSERT_TRUE(read);
    EXPECT_EQ(read->line, (Lineage{.run = "0123456789abcdef"}));
    EXPECT_EQ(read->state, "");
    EXPECT_EQ(read->commits.front().step, 3);
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

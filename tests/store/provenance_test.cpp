// Tests that files are known as nearstep's by their content, and that no others are removed.
#include "store/provenance.hpp"

#include "store/subgroup_header.hpp"
#include "support/test.hpp"

#include <unistd.h>

namespace nearstep::store {
namespace {

class Provenance : public testing::Test {
protected:
    std::string path(const std::string& name) const { return folder_.file(name); }

private:
    ScratchFolder folder_;
};

std::string sealed_page() {
    std::vector<std::byte> extent(kHeaderBytes + 16);
    seal({.layout = 1, .subgroup = 0, .generation = 0}, extent);
    return {reinterpret_cast<const char*>(extent.data()), extent.size()};
}

TEST_F(Provenance, ToldByWhatAFileHolds) {
    const RankFiles files{.states = {path("rank-0.device-0.state"), path("rank-0.device-1.state")},
                          .manifest = path("rank-0.manifest")};
    EXPECT_TRUE(foreign_files(files).empty());  // no file exists
    put_bytes(files.states[0], "");
    put_bytes(files.states[1], std::string(8192, '\0'));
    EXPECT_TRUE(foreign_files(files).empty());  // made, but not written yet
    put_bytes(files.states[0], "my own notes");
    EXPECT_EQ(foreign_files(files), std::vector{files.states[0]});
    EXPECT_THROW(refuse_foreign_files(files), ConfigError);
    put_bytes(files.states[0], sealed_page());
    EXPECT_TRUE(foreign_files(files).empty());
    put_bytes(files.states[1], std::string(8192, 'x'));  // a stripe of the state
    EXPECT_TRUE(foreign_files(files).empty());
    put_bytes(files.manifest, "shopping list");
    EXPECT_EQ(foreign_files(files), std::vector{files.manifest});
    put_bytes(files.manifest, "nearstep manifest 1\nrun = 1");
    EXPECT_NO_THROW(refuse_foreign_files(files));
    put_bytes(files.manifest,
              "nearstXp manifest 1\nrun = 1\nmodel = m\nlayout = l\n");  // a flipped bit
    EXPECT_NO_THROW(refuse_foreign_files(files));
    put_bytes(files.manifest, "nearst");  // cut short
    EXPECT_NO_THROW(refuse_foreign_files(files));
}

TEST_F(Provenance, RemovesOnlyPlainFilesWithContentOfItsOwn) {
    const std::string state = path("rank-0.device-0.state");
    put_bytes(state, sealed_page());
    EXPECT_TRUE(is_removable_state(state, {}));
    std::filesystem::create_hard_link(state, path("other name"));
    EXPECT_FALSE(is_removable_state(state, {}));
    std::filesystem::remove(path("other name"));
    std::filesystem::create_symlink(state, path("link"));
    EXPECT_FALSE(is_removable_state(path("link"), {}));
    EXPECT_FALSE(is_removable_state(path("absent"), {}));
    const std::string stripe = path("rank-0.device-1.state");
    put_bytes(stripe, std::string(8192, 'x'));
    EXPECT_FALSE(is_removable_state(stripe, {stripe}));
    EXPECT_TRUE(is_removable_state(stripe, {state, stripe}));
    put_bytes(path("rank-0.manifest"), "nearstep manifest 1\nrun = 1");
    EXPECT_TRUE(is_removable_manifest(path("rank-0.manifest")));
    put_bytes(path("rank-0.manifest"), "shopping list");
    EXPECT_FALSE(is_removable_manifest(path("rank-0.manifest")));
}

// Only root can make such a file.
TEST_F(Provenance, RemovesNoFileOfAnotherUser) {
    const std::string state = path("rank-0.device-0.state");
    put_bytes(state, sealed_page());
    if (::chown(state.c_str(), 54321, 54321) != 0) {
        GTEST_SKIP() << "this user cannot give files away";
    }
    EXPECT_FALSE(is_removable_state(state, {}));
}

}  // namespace
}  // namespace nearstep::store

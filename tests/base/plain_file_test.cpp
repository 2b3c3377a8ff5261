// Tests files that are opened, made and removed where others may have put links or FIFOs.
#include "base/plain_file.hpp"

#include "support/test.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace nearstep {
namespace {

class PlainFiles : public testing::Test {
protected:
    ScratchFolder folder_;
    std::string thesis_ = folder_.write("thesis.tex", "a thesis");
    std::string path_ = folder_.file("file");
};

TEST_F(PlainFiles, AreRegularFilesUnderTheirOwnName) {
    EXPECT_EQ(open_plain(path_, O_RDONLY).code, ENOENT);
    EXPECT_TRUE(open_plain(thesis_, O_RDONLY).file);
    EXPECT_EQ(start_of_plain(thesis_, 3), "a t");
    EXPECT_EQ(start_of_plain(thesis_, 100), "a thesis");
    EXPECT_TRUE(is_own_plain(thesis_));
    std::filesystem::create_symlink(thesis_, path_);
    EXPECT_EQ(open_plain(path_, O_RDWR | O_CREAT, 0600).code, ELOOP);
    EXPECT_EQ(start_of_plain(path_, 3), "");
    EXPECT_FALSE(is_own_plain(path_));
    std::filesystem::remove(path_);
    std::filesystem::create_symlink(folder_.file("absent"), path_);
    EXPECT_EQ(open_plain(path_, O_RDWR | O_CREAT, 0600).code, ELOOP);
    EXPECT_FALSE(std::filesystem::exists(folder_.file("absent")));
    std::filesystem::remove(path_);
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    EXPECT_EQ(open_plain(path_, O_RDONLY).code, EINVAL);  // and does not wait
    EXPECT_EQ(open_plain(folder_.path(), O_RDONLY).code, EISDIR);
    EXPECT_EQ(open_plain("/dev/null", O_RDWR).code, EINVAL);
}

TEST_F(PlainFiles, AreMadeInPlaceOfALinkAndNotThroughIt) {
    for (const bool is_hard : {false, true}) {
        std::filesystem::remove(path_);
        if (is_hard) {
            std::filesystem::create_hard_link(thesis_, path_);
        } else {
            std::filesystem::create_symlink(thesis_, path_);
        }
        const Descriptor made = make_plain(path_, 0600);
        ASSERT_TRUE(made);
        ASSERT_EQ(::write(made.get(), "new", 3), 3);
        EXPECT_EQ(bytes_of(thesis_), "a thesis");
        EXPECT_EQ(bytes_of(path_), "new");
    }
}

}  // namespace
}  // namespace nearstep

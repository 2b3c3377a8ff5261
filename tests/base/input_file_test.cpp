// Tests the reading of files that are cut short, are pipes or links, or cannot be read.
#include "base/input_file.hpp"

#include "support/test.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <functional>
#include <initializer_list>
#include <thread>

namespace nearstep {
namespace {

using testing::Property;
using testing::ThrowsMessage;

TEST(InputFile, ThatIsCutShortIsASentence) {
    const ScratchFolder folder;
    const std::string path = folder.write("tokens", std::string(10000, 'x'));
    const InputFile file(path, "The token file", "mend it.");
    std::filesystem::resize_file(path, 4096);
    std::array<std::byte, 100> some{};
    file.read(3996, some);
    EXPECT_THAT([&] { file.read(4000, some); },
                ThrowsMessage<IoError>(AllOf(HasSubstr(path), HasSubstr("shorter"))));
    EXPECT_THAT([&] { file.read_all(); }, ThrowsMessage<IoError>(HasSubstr(path)));
}

TEST(InputFile, IsARegularFile) {
    const ScratchFolder folder;
    const std::string pipe = folder.path() + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_THAT([&] { const InputFile file(pipe, "The model's", "mend it."); },
                ThrowsMessage<ConfigError>(states(pipe)));
    EXPECT_THROW(InputFile(folder.path() + "/none", "The model's", "mend it."), PathError);
}

TEST(ShortFiles, AreReadWholeAndHaveAnEnd) {
    const ScratchFolder folder;
    const auto read = [](const std::string& path) {
        return read_short_file(path, "The config", "name another.");
    };
    EXPECT_EQ(read(folder.write("config", "a = 1")), "a = 1");
    EXPECT_EQ(read("/dev/null"), "");
    for (const std::string& path : {folder.path(), folder.file("none"), std::string("/dev/zero")}) {
        EXPECT_THAT([&] { read(path); }, ThrowsMessage<ConfigError>(states(path))) << path;
    }
}

TEST(ShortFiles, MayBePipesWhoseWriterComesLater) {
    const ScratchFolder folder;
    const std::string path = folder.file("pipe");
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    std::jthread writer([&] { put_bytes(path, "mode = \"su\""); });
    EXPECT_EQ(read_short_file(path, "The config", "check it."), "mode = \"su\"");
}

TEST(ShortFiles, AreNoLinksThatLeadNowhere) {
    const ScratchFolder folder;
    fs::create_symlink("gone", folder.file("link"));
    for (const auto& read : std::initializer_list<std::function<void()>>{
             [&] { read_short_file(folder.file("link"), "The config", "check it."); },
             [&] { InputFile(folder.file("link"), "The text file", "check it."); }}) {
        EXPECT_THAT(read, ThrowsMessage<PathError>(HasSubstr("it is a link that leads nowhere")));
    }
}

TEST(PathErrors, NameTheLimitOnOpenFiles) {
    EXPECT_THAT([] { throw_path_error("It fails", EMFILE, "choose another."); },
                ThrowsMessage<IoError>(HasSubstr("ulimit -n")));
}

TEST(PathErrors, TellAMistakeFromADriveThatFails) {
    for (const int code : {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, EEXIST, ENOSPC, EDQUOT, ELOOP}) {
        EXPECT_THAT([&] { throw_path_error("It fails", code, "choose another."); },
                    ThrowsMessage<PathError>(HasSubstr("choose another")))
            << code;
    }
    for (const int code : {EIO, ENXIO, ENODEV, EREMOTEIO, ESTALE, ETIMEDOUT, ENOTCONN, EUCLEAN,
                           EHOSTDOWN, ENOLCK, EMFILE, ENOMEM}) {
        EXPECT_THAT([&] { throw_path_error("It fails", code, "choose another."); },
                    ThrowsMessage<IoError>(Not(HasSubstr("choose another"))))
            << code;
    }
}

}  // namespace
}  // namespace nearstep

// Tests that output replaces a file as a whole, follows links, and goes to pipes and devices.
#include "base/output_file.hpp"

#include "support/test.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace nearstep {
namespace {

class OutputFile : public testing::Test {
protected:
    std::string at(const std::string& name) const { return folder_.file(name); }
    std::string read(const std::string& name) const { return bytes_of(at(name)); }
    std::size_t files() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator()));
    }

private:
    ScratchFolder folder_;
};

TEST_F(OutputFile, ReplacesARegularFileAndLeavesNothingBesides) {
    put_bytes(at("result"), "a longer old content");
    ::chmod(at("result").c_str(), 0640);
    const std::ifstream reader(
        at("result"));  // one that reads the old file goes on to see it whole
    check_writable(at("result"));
    EXPECT_EQ(read("result"), "a longer old content");
    write_whole_file(at("result"), "new");
    EXPECT_EQ(read("result"), "new");
    EXPECT_EQ(fs::status(at("result")).permissions(), fs::perms(0640));
    EXPECT_EQ(files(), 1U);
}

TEST_F(OutputFile, FollowsLinksAlsoToAFileThatIsMissing) {
    fs::create_directory(at("below"));
    fs::create_symlink("below/target", at("link"));
    fs::create_symlink(at("link"), at("link to link"));
    for (const char* content : {"first", "second"}) {
        check_writable(at("link to link"));
        write_whole_file(at("link to link"), content);
        EXPECT_EQ(read("below/target"), content);
        EXPECT_TRUE(fs::is_symlink(at("link")) && fs::is_symlink(at("link to link")));
    }
}

TEST_F(OutputFile, WritesToAPipe) {
    ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
    const Descriptor reader(::open(at("pipe").c_str(), O_RDONLY | O_NONBLOCK));
    check_writable(at("pipe"));
    write_whole_file(at("pipe"), "through");
    std::array<char, 16> got{};
    EXPECT_EQ(::read(reader.get(), got.data(), got.size()), 7);
    EXPECT_TRUE(fs::is_fifo(at("pipe")));
    EXPECT_THROW(regular_output(at("pipe"), "An export"), ConfigError);
}

TEST_F(OutputFile, WritesToADescriptorBehindWhatWasWritten) {
    const Descriptor file(::open(at("log").c_str(), O_WRONLY | O_CREAT, 0600));
    ASSERT_EQ(::write(file.get(), "said, ", 6), 6);
    const std::string name = text("/dev/fd/", file.get());
    check_writable(name);
    write_whole_file(name, "result, ");
    ASSERT_EQ(::write(file.get(), "said", 4), 4);
    EXPECT_EQ(read("log"), "said, result, said");
}

TEST_F(OutputFile, LeavesADeviceWhatItIs) {
    write_whole_file("/dev/null", "gone");
    LineOutput lines("/dev/null");
    lines.begin("gone\n");
    EXPECT_EQ(lines.add("gone\n"), 0);
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    EXPECT_THROW(write_whole_file("/dev/full", "too much"), PathError);
}

TEST_F(OutputFile, SaysOfALineThatItCannotBeWritten) {
    LineOutput lines("/dev/full");
    EXPECT_EQ(lines.add("too much\n"), ENOSPC);
}

TEST_F(OutputFile, SurvivesAReaderThatHasGone) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    const Descriptor writer(ends[1]);
    ::close(ends[0]);
    LineOutput lines(text("/dev/fd/", writer.get()));
    EXPECT_EQ(lines.add("line\n"), EPIPE);
}

TEST_F(OutputFile, HasNoHalfLineIfThereIsNoRoom) {
    LineOutput lines(at("metrics"));
    lines.begin("head\n");
    with_file_limit(8, [&] { EXPECT_EQ(lines.add("a long line\n"), EFBIG); });
    EXPECT_EQ(read("metrics"), "head\n");
    EXPECT_EQ(lines.add("next\n"), 0);
    EXPECT_EQ(read("metrics"), "head\nnext\n");
}

TEST_F(OutputFile, IsRefusedWhereNothingCanBeWritten) {
    for (const std::string& path :
         {at(""), std::string("."), at("missing/file"), std::string("/dev/null/file")}) {
        EXPECT_THROW(check_writable(path), PathError) << path;
        EXPECT_THROW(write_whole_file(path, "text"), PathError) << path;
        EXPECT_THROW(LineOutput{path}, PathError) << path;
    }
    fs::create_symlink("loop", at("loop"));
    EXPECT_THROW(check_writable(at("loop")), PathError);
}

TEST_F(OutputFile, IsApartFromTheOthersAndFromWhatIsRead) {
    fs::create_directory(at("text"));
    for (const char* name : {"config", "text/a", "other"}) {
        put_bytes(at(name), "precious");
    }
    fs::create_symlink("config", at("link"));
    fs::create_hard_link(at("config"), at("name"));
    const std::vector<NamedPath> inputs{
        {"the config", at("config")},
        {"data.train", at("text")},
        {"a state", "", [](const std::string& name) { return name == "state"; }}};
    fs::create_symlink("text/state", at("to state"));
    const auto check = [&](const std::string& json, const std::string& metrics) {
        check_apart({{"--json", json}, {"--metrics", metrics}}, inputs);
    };
    check(at("new"), at("other"));
    check("", at("text/new"));
    check("/dev/null", "/dev/null");
    for (const char* name : {"config", "link", "name", "text/a", "state", "to state"}) {
        EXPECT_THAT([&] { check(at(name), ""); },
                    testing::ThrowsMessage<ConfigError>(
                        AllOf(HasSubstr("--json"), HasSubstr(at(name)), HasSubstr("lost"))));
    }
    EXPECT_THAT(
        [&] { check(at("new"), at("text/../new")); },
        testing::ThrowsMessage<ConfigError>(AllOf(HasSubstr("--json"), HasSubstr("--metrics"))));
}

}  // namespace
}  // namespace nearstep

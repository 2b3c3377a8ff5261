// Reads and writes the file for Prometheus.
#include "report/prometheus.hpp"

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

namespace nearstep::report {
namespace {

std::string content_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Two ranks; the first one has a drive and a device in memory, the second one two drives.
RunDrives three_drives() { return {{2, 2}, {1, 2}, {"one", "a \"host\""}}; }

class Prometheus : public testing::Test {
protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("prometheus." + std::to_string(::getpid()));
        std::filesystem::create_directories(folder_);
        path_ = (folder_ / "run.prom").string();
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    // A process of the job that takes a step and ends.
    void run(bool continues, const std::vector<std::uint64_t>& written) {
        PrometheusFile file(run_, 7, path_);
        file.begin(2, continues, three_drives());
        file.written(written);
        StepReport report;
        report.step = 2;
        report.loss = 1.5;
        EXPECT_EQ(file.step(report, 0.5), "");
        EXPECT_NE(content_of(path_).find("nearstep_running 1\n"), std::string::npos);
        EXPECT_EQ(file.end(), "");
    }

    std::filesystem::path folder_;
    std::string path_;
    config::RunSettings run_;
};

// Each line is a comment or a sample, as the format wants, and follows its TYPE.
TEST_F(Prometheus, WritesTheTextFormat) {
    run(false, {10, 20, 30, 40});
    const std::regex sample(
        R"re(([a-z_]+)(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)+\})? (NaN|[-+]?Inf|[-+.e0-9]+))re");
    std::istringstream lines(content_of(path_));
    std::string type;
    for (std::string line; std::getline(lines, line);) {
        std::smatch parts;
        if (line.starts_with("# TYPE ")) {
            type = line.substr(7, line.rfind(' ') - 7);
        } else if (!line.starts_with("# HELP ")) {
            ASSERT_TRUE(std::regex_match(line, parts, sample)) << line;
            EXPECT_EQ(parts[1], type) << line;
        }
    }
    const std::string text = content_of(path_);
    EXPECT_NE(text.find("nearstep_loss 1.5\n"), std::string::npos);
    EXPECT_NE(text.find("nearstep_running 0\n"), std::string::npos);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(Prometheus, KeepsWhatEarlierProcessesWroteToDrives) {
    run(false, {10, 20, 30, 40});
    run(true, {1, 2, 3, 4});
    const std::map<std::string, double> expected = {
        {R"({rank="0",device="0",host="one"})", 11},
        {R"({rank="1",device="0",host="a \"host\""})", 33},
        {R"({rank="1",device="1",host="a \"host\""})", 44}};
    EXPECT_EQ(written_in(content_of(path_)), expected);
    run(false, {1, 2, 3, 4});
    EXPECT_EQ(written_in(content_of(path_)).begin()->second, 1) << "a new run counts anew";
}

TEST_F(Prometheus, IgnoresWhatIsNoCounter) {
    const std::string name = "nearstep_drive_written_bytes_total";
    for (const char* end : {"", "{", "{} x", "{a=\"1\"} -1", "{a=\"1\"} nan", "{a=\"1\"} 1e999",
                            "{a=\"1\"} 1 2", "{a=\"1\"}"}) {
        EXPECT_TRUE(written_in(name + end + "\n").empty()) << end;
    }
}

TEST_F(Prometheus, SaysWhyItCannotBeReplaced) {
    PrometheusFile file(run_, 7, path_);
    file.begin(1, false, {});
    std::filesystem::remove_all(folder_);
    EXPECT_NE(file.end(), "");
    EXPECT_THROW(PrometheusFile(run_, 7, path_), ConfigError);
}

}  // namespace
}  // namespace nearstep::report

#include "support/test_source.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace nearstep {

void select_test_source(int argc, char** argv) {
    constexpr std::string_view kOption = "--source=";
    if (argc < 2 || std::string_view(argv[1]).substr(0, kOption.size()) != kOption) {
        return;
    }
    const std::string source(std::string_view(argv[1]).substr(kOption.size()));
    std::string filter;
    const testing::UnitTest& program = *testing::UnitTest::GetInstance();
    for (int i = 0; i < program.total_test_suite_count(); ++i) {
        const testing::TestSuite& suite = *program.GetTestSuite(i);
        for (int j = 0; j < suite.total_test_count(); ++j) {
            const testing::TestInfo& test = *suite.GetTestInfo(j);
            if (std::filesystem::path(test.file()).stem() == source) {
                filter += std::string(suite.name()) + '.' + test.name() + ':';
            }
        }
    }
    if (filter.empty()) {
        std::fprintf(stderr, "%s has no test of a source %s.cpp.\n", argv[0], source.c_str());
        std::exit(2);
    }
    if (testing::GTEST_FLAG(filter) == "*") {
        testing::GTEST_FLAG(filter) = filter;
    }
}

}  // namespace nearstep

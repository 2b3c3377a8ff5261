// Selects the tests of one source, as ctest calls them. Called by main.cpp and mpi_main.cpp.
#include "support/test_source.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace nearstep {

namespace {

// The text after "--name=" if this is that argument.
std::optional<std::string> value_of(std::string_view name, int argc, char** argv, int at) {
    if (argc <= at || !std::string_view(argv[at]).starts_with(name)) {
        return std::nullopt;
    }
    return std::string(argv[at] + name.size());
}

}  // namespace

void select_test_source(int argc, char** argv) {
    const std::optional<std::string> source = value_of("--source=", argc, argv, 1);
    if (!source) {
        return;
    }
    const bool is_long = std::getenv("NEARSTEP_LONG") != nullptr;
    const int step = is_long ? 1 : std::stoi(value_of("--every=", argc, argv, 2).value_or("1"));
    int count = 0;
    std::string filter;
    const testing::UnitTest& program = *testing::UnitTest::GetInstance();
    for (int i = 0; i < program.total_test_suite_count(); ++i) {
        const testing::TestSuite& suite = *program.GetTestSuite(i);
        for (int j = 0; j < suite.total_test_count(); ++j) {
            const testing::TestInfo& test = *suite.GetTestInfo(j);
            if (std::filesystem::path(test.file()).stem() == *source && count++ % step == 0) {
                filter += std::string(suite.name()) + '.' + test.name() + ':';
            }
        }
    }
    if (filter.empty()) {
        std::fprintf(stderr, "%s has no test of a source %s.cpp.\n", argv[0], source->c_str());
        std::exit(2);
    }
    if (testing::GTEST_FLAG(filter) == "*") {
        testing::GTEST_FLAG(filter) = filter;
    }
}

}  // namespace nearstep

// main() of tests that run in one process.
#include "support/test_source.hpp"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    nearstep::select_test_source(argc, argv);
    return RUN_ALL_TESTS();
}

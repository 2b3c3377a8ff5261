// main() of tests on several ranks. Every rank returns the worst result of all ranks.
#include "mpi/communicator.hpp"
#include "mpi/session.hpp"
#include "support/test_source.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

namespace {

// Prints failures on ranks other than 0. Rank 0 prints its full report as usual.
class FailurePrinter : public testing::EmptyTestEventListener {
public:
    explicit FailurePrinter(int rank) : rank_(rank) {}

    void OnTestPartResult(const testing::TestPartResult& result) override {
        if (result.failed()) {
            std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_,
                         result.file_name() != nullptr ? result.file_name() : "?",
                         result.line_number(), result.message());
        }
    }

private:
    int rank_;
};

}  // namespace

int main(int argc, char** argv) {
    const nearstep::mpi::Session session;
    testing::InitGoogleTest(&argc, argv);
    nearstep::select_test_source(argc, argv);
    const auto world = nearstep::mpi::Communicator::world(std::chrono::seconds(60));
    if (world.rank() != 0) {
        auto& listeners = testing::UnitTest::GetInstance()->listeners();
        const std::unique_ptr<testing::TestEventListener> silenced(
            listeners.Release(listeners.default_result_printer()));
        listeners.Append(std::make_unique<FailurePrinter>(world.rank()).release());
    }
    const bool has_passed = RUN_ALL_TESTS() == 0;
    const bool have_all_passed = world.agree(has_passed);
    if (world.rank() == 0 && has_passed && !have_all_passed) {
        std::fprintf(stderr, "Tests failed on another rank, which printed what.\n");
    }
    return have_all_passed ? 0 : 1;
}

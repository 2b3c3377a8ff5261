// Tests that a signal to stop is noted and does not end the process.
#include "base/stop_request.hpp"

#include "support/test.hpp"

#include <csignal>

namespace nearstep {
namespace {

// Runs in its own process for each signal, because a request cannot be reset.
int code_after(int signal) {
    note_stop_requests();
    const bool was_requested = is_stop_requested();
    std::raise(signal);
    return !was_requested && is_stop_requested() ? kStoppedExitCode : 1;
}

class StopRequest : public testing::TestWithParam<int> {};

TEST_P(StopRequest, IsNotedAndDoesNotEndTheProcess) {
    EXPECT_EXIT(std::_Exit(code_after(GetParam())), testing::ExitedWithCode(kStoppedExitCode), "");
}

INSTANTIATE_TEST_SUITE_P(Signals, StopRequest, testing::Values(SIGTERM, SIGUSR1));

TEST(StopRequest, IsNotThereWithoutASignal) {
    note_stop_requests();
    EXPECT_FALSE(is_stop_requested());
}

}  // namespace
}  // namespace nearstep

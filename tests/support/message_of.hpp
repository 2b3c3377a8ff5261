// What a failure says.
#pragma once

#include "base/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace nearstep {

// The message of the exception of type `E` that `action` throws; a test failure if it throws none.
template <typename E = ConfigError, typename Action>
std::string message_of(const Action& action) {
    try {
        action();
    } catch (const E& error) {
        return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
}

}  // namespace nearstep

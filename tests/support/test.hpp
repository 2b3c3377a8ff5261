// What most tests use: GoogleTest with its usual matchers, the standard library, the message of an
// error, and a folder for the files of one test.
#pragma once

#include "base/error.hpp"
#include "base/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace nearstep {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// A fact of a message: a key, a path, a name or a number, which is no part of a longer one.
MATCHER_P(StatesFact, fact, "") {
    const std::string message = arg;
    const auto ends_word = [&](std::size_t at) {
        return at >= message.size() ||
               (std::isalnum(static_cast<unsigned char>(message[at])) == 0 && message[at] != '_');
    };
    for (std::size_t at = message.find(fact); at != std::string::npos;
         at = message.find(fact, at + 1)) {
        if ((at == 0 || ends_word(at - 1)) && ends_word(at + fact.size())) {
            return true;
        }
    }
    return false;
}

// What a message says, in whichever words and order: all these facts.
template <typename... Facts>
auto states(const Facts&... facts) {
    return AllOf(StatesFact(text(facts))...);
}

// The errno that a refused path or file tells.
template <typename Action>
int code_of(const Action& action) {
    try {
        action();
    } catch (const PathError& error) {
        return error.code();
    }
    ADD_FAILURE() << "no path was refused";
    return 0;
}

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

// Removed with the object.
class ScratchFolder {
public:
    explicit ScratchFolder(const std::string& parent = testing::TempDir())
        : path_(parent + "nearstep-XXXXXX") {
        if (::mkdtemp(path_.data()) == nullptr) {
            throw std::runtime_error("No folder can be made in " + parent);
        }
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    ~ScratchFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }

    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

// The content of a file.
inline std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Inverts the lowest bit of a byte of a file.
inline void flip_bit(const std::string& path, std::int64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
    if (!file.flush()) {
        throw std::runtime_error("No byte can be changed in " + path);
    }
}

}  // namespace nearstep

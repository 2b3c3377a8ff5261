// Includes what most tests use: GoogleTest with its usual matchers, the standard library, the
// message of an error, and files, limits and variables of one test.
#pragma once

#include "base/error.hpp"
#include "base/random.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <csignal>
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

// Matches a message that states all these facts, in whichever words and order.
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

// Replaces the content of a file; returns its path.
inline std::string put_bytes(const std::string& path, const std::string& bytes) {
    if (!std::ofstream(path, std::ios::binary | std::ios::trunc)
             .write(bytes.data(), std::ssize(bytes))
             .flush()) {
        throw std::runtime_error("Nothing can be written to " + path);
    }
    return path;
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
    // Writes a file and returns its path.
    std::string write(const std::string& name, const std::string& bytes) const {
        fs::create_directories(fs::path(file(name)).parent_path());
        return put_bytes(file(name), bytes);
    }

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

// Calls `action` while this process can make no file longer than `bytes`.
template <typename Action>
void with_file_limit(std::size_t bytes, const Action& action) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before.rlim_max};
    auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    action();
    std::signal(SIGXFSZ, handler);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

// Sets variables, "" for none, and gives them their values back.
class Environment {
public:
    Environment() = default;
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;
    ~Environment() {
        for (const auto& [name, value] : before_) {
            put(name, value);
        }
    }
    void set(const std::string& name, const std::string& value) {
        const char* const now = std::getenv(name.c_str());
        before_.emplace(name, now == nullptr ? "" : now);
        put(name, value);
    }

private:
    static void put(const std::string& name, const std::string& value) {
        value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
    }

    std::map<std::string, std::string> before_;
};

}  // namespace nearstep

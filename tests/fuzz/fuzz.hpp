// The interface of every fuzz target: seeds, one input at a time, and a verdict.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nearstep::fuzz {

using Bytes = std::span<const std::uint8_t>;

// Each target defines these two functions.
//
// Valid inputs, from which the fuzzer starts.
std::vector<std::string> seeds();
// Hands one input to the reader. It may return, or throw an Error other than ContractError.
void read(Bytes input);

// Ends the program with a message unless `holds`: the reader gave a wrong result.
void require(bool holds, std::string_view what);

// Reads an input from the front; missing bytes read as zeros.
class Input {
public:
    explicit Input(Bytes bytes) : rest_(bytes) {}

    template <typename Number>
    Number number() {
        static_assert(std::is_arithmetic_v<Number>);
        Number value = 0;
        const Bytes taken = take(sizeof value);
        if (!taken.empty()) {
            std::memcpy(&value, taken.data(), taken.size());
        }
        return value;
    }
    // A number below `count`.
    std::size_t choice(std::size_t count) { return number<std::uint8_t>() % count; }
    bool flag() { return (number<std::uint8_t>() & 1U) != 0; }
    Bytes take(std::size_t most);
    // Reads up to a zero byte, which is dropped.
    std::string part();
    Bytes rest() { return take(rest_.size()); }
    bool is_at_end() const { return rest_.empty(); }

private:
    Bytes rest_;
};

// Writes an input in the form that Input reads.
class Output {
public:
    template <typename Number>
    Output& number(Number value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Output& part(std::string_view text) {
        bytes_.append(text).push_back('\0');
        return *this;
    }
    Output& rest(std::string_view text) {
        bytes_.append(text);
        return *this;
    }
    operator std::string() const { return bytes_; }  // NOLINT(google-explicit-constructor)

private:
    std::string bytes_;
};

// Overwrites parts of `bytes` as the rest of the input says: places, lengths and bytes in turn.
void edit(Input& input, std::span<std::byte> bytes);

// A folder of this process in memory, or in TMPDIR. It is removed at exit.
const std::string& scratch_folder();

void write_file(const std::string& path, std::string_view content);

}  // namespace nearstep::fuzz

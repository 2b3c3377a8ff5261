// Parses the text of manifests and file names from the front.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace nearstep::store {

// is_good() is false once something expected is missing. The text outlives the scanner.
class Scanner {
public:
    explicit Scanner(std::string_view content) : rest_(content) {}

    bool is_good() const { return is_good_; }
    bool is_at(std::string_view word) const { return rest_.starts_with(word); }
    bool is_at_end() const { return rest_.empty(); }

    void fail() { is_good_ = false; }
    void skip(std::string_view word) {
        is_good_ = is_good_ && is_at(word);
        rest_.remove_prefix(is_good_ ? word.size() : 0);
    }
    // Between the items of a list, of which none follows at the end of the text.
    void skip_separator(std::string_view word) {
        if (rest_ == word) {
            fail();
        } else if (!is_at_end()) {
            skip(word);
        }
    }
    std::string up_to(char end) {
        std::string word(rest_.substr(0, rest_.find(end)));
        rest_.remove_prefix(word.size());
        return word;
    }
    std::string line_after(std::string_view key) {
        skip(key);
        std::string line = up_to('\n');
        skip("\n");
        return line;
    }
    // Empty if the line is missing.
    std::string line_after_if_any(std::string_view key) {
        return is_at(key) ? line_after(key) : std::string();
    }
    template <typename Number>
    void number_after(std::string_view word, Number& number) {
        skip(word);
        take(std::from_chars(rest_.data(), rest_.data() + rest_.size(), number));
    }
    // Hexadecimal digits.
    void hex_after(std::string_view word, std::uint64_t& number) {
        skip(word);
        take(std::from_chars(rest_.data(), rest_.data() + rest_.size(), number, 16));
    }

private:
    void take(std::from_chars_result found) {
        const auto [end, error] = found;
        is_good_ = is_good_ && error == std::errc();
        rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    }

    std::string_view rest_;
    bool is_good_ = true;
};

}  // namespace nearstep::store

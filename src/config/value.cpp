// Writes a key's value for messages and printing. Used by config and the model's geometry.
#include "config/value.hpp"

#include <array>
#include <charconv>

namespace nearstep::config {

namespace {

struct ScalarWriter {
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(std::int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return written(value); }
    std::string operator()(const std::string& value) const {
        return written(std::string_view(value));
    }
};

}  // namespace

std::string written(double number) {
    std::array<char, 64> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    return {digits.data(), end};
}

std::string written(std::string_view text) {
    std::string quoted;
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') {
            quoted += '\\';
        }
        quoted += letter;
    }
    return '"' + on_one_line(quoted) + '"';
}

std::string written(const Scalar& scalar) { return std::visit(ScalarWriter(), scalar); }

std::string written(const Value& value) {
    if (!value.is_list) {
        return written(value.items.front());
    }
    std::string out = "[";
    for (const Scalar& item : value.items) {
        out += (out.size() > 1 ? ", " : "") + written(item);
    }
    return out + ']';
}

}  // namespace nearstep::config

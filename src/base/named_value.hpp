// A value with its name, as text for messages.
#pragma once

#include <string>

namespace nearstep {

struct NamedValue {
    std::string name;
    std::string value;

    friend bool operator==(const NamedValue&, const NamedValue&) = default;
};

template <typename Archive>
void list(Archive& archive, NamedValue& one) {
    archive(one.name, one.value);
}

}  // namespace nearstep

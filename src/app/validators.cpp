// Checks the values of options. Used by the subcommands.
#include "app/commands.hpp"
#include "base/error.hpp"

namespace nearstep::app {

CLI::Validator number_in(double least, double most) {
    return {[=](std::string& word) {
                double value = 0;
                const bool is_in =
                    CLI::detail::lexical_cast(word, value) && value >= least && value <= most;
                return is_in ? std::string()
                             : text(word, " is no number from ", least, " to ", most);
            },
            text("in [", least, " - ", most, "]")};
}

CLI::Validator not_empty() {
    return {[](std::string& word) { return std::string(word.empty() ? "name something" : ""); },
            ""};
}

}  // namespace nearstep::app

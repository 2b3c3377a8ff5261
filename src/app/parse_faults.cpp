// Words what is wrong with a command line. Called by run_command().
#include "app/parse_faults.hpp"

#include "base/error.hpp"
#include "base/likeness.hpp"
#include "base/wording.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace nearstep::app {

namespace {

const CLI::App& chosen_command(const CLI::App& program) {
    const CLI::App* command = &program;
    while (!command->get_subcommands().empty()) {
        command = command->get_subcommands().front();
    }
    return *command;
}

// "There is no option --stpes: did you mean --steps?" of the first word that no command takes;
// empty if all are taken, or nothing resembles it.
std::string guess_for(const CLI::App& program) {
    constexpr std::size_t kMostEdits = 3;
    const std::vector<std::string> rest = program.remaining(true);
    if (rest.empty()) {
        return "";
    }
    const CLI::App& command = chosen_command(program);
    const std::string given = rest.front().substr(0, rest.front().find('='));
    const bool is_option = given.starts_with("--");
    std::vector<std::string> known;
    if (is_option) {
        for (const CLI::Option* option : command.get_options()) {
            for (const std::string& name : option->get_lnames()) {
                known.push_back("--" + name);
            }
        }
    } else {
        for (const CLI::App* other :
             command.get_subcommands([](const CLI::App*) { return true; })) {
            known.push_back(other->get_name());
        }
    }
    const std::string* const nearest = nearest_word(given, known, kMostEdits);
    return nearest == nullptr ? ""
                              : text("There is no ", is_option ? "option " : "command ", given,
                                     ": did you mean ", *nearest, "?");
}

}  // namespace

// CLI11 drops empty items by itself.
void refuse_empty_items(const CLI::App& program, int argc, const char* const* argv) {
    for (const CLI::Option* option : chosen_command(program).get_options()) {
        if (option->get_delimiter() == '\0') {
            continue;
        }
        const std::string name = option->get_name();
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            const bool is_apart = word == name && i + 1 < argc;
            if (!is_apart && !word.starts_with(name + "=")) {
                continue;
            }
            const std::string list = is_apart ? argv[i + 1] : word.substr(name.size() + 1);
            if (list.starts_with(',') || list.ends_with(',') || list.find(",,") != list.npos) {
                throw ConfigError(
                    text(name, " '", on_one_line(list),
                         "' lacks an item beside a comma: write one comma between two "
                         "items."));
            }
        }
    }
}

std::string sentence_of(const CLI::App& program, const CLI::ParseError& error) {
    std::string guess = guess_for(program);
    if (!guess.empty()) {
        return guess;
    }
    std::string message = error.what();
    std::ranges::replace(message, '\n', ' ');
    return message + ": see nearstep --help, or --help behind a command.";
}

}  // namespace nearstep::app

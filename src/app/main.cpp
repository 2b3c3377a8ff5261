// The program nearstep.
#include "app/commands.hpp"
#include "base/error.hpp"
#include "base/version.hpp"
#include "mpi/communicator.hpp"
#include "mpi/session.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <iostream>
#include <string>

namespace {

// CLI11's message as one sentence, with where to look.
std::string sentence_of(const CLI::ParseError& error) {
    std::string message = error.what();
    for (char& c : message) {
        c = c == '\n' ? ' ' : c;
    }
    return message + ": see nearstep --help, or --help behind a command.";
}

}  // namespace

// Nothing is caught: the terminate handler of mpi::Session says what happened and ends all ranks.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    const nearstep::mpi::Session session(argc, argv);
    const auto world = nearstep::mpi::Communicator::world(std::chrono::seconds(120));
    CLI::App program(
        "Trains language models whose optimizer state lives in storage, with the optimizer step "
        "near it.",
        "nearstep");
    program.set_version_flag("--version",
                             std::string(nearstep::version()) + " commit " + nearstep::commit());
    nearstep::app::Action action;
    int exit_code = 0;
    nearstep::app::add_commands(program, action, exit_code);
    try {
        program.parse(argc, argv);
    } catch (const CLI::Success& request) {  // --help, --version
        return world.rank() == 0 ? program.exit(request) : 0;
    } catch (const CLI::ParseError& error) {
        throw nearstep::ConfigError(sentence_of(error));
    }
    action(world);
    return exit_code;
}

// Runs nearstep commands one after another, in one process per rank, for the scenarios: the start
// of a process costs more than a short run.
//   command_server FOLDER
// Each rank reads lines from the pipe FOLDER/commands-RANK, {"arguments": [...], "fault": PLAN,
// "stdout": FILE, "stderr": FILE}, and writes a line with the exit code to FOLDER/codes-RANK. It
// ends when the pipe is closed.
#include "app/commands.hpp"
#include "base/descriptor.hpp"
#include "base/error.hpp"
#include "mpi/communicator.hpp"
#include "mpi/session.hpp"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace nearstep {
namespace {

// Handles a mistake that all ranks see like main() of the program and mpi::Session. Any other error
// ends the process.
int exit_code_of(const mpi::Communicator& world, const std::vector<std::string>& arguments) {
    std::vector<const char*> words = {"nearstep"};
    for (const std::string& argument : arguments) {
        words.push_back(argument.c_str());
    }
    try {
        return app::run_command(world, static_cast<int>(words.size()), words.data());
    } catch (const ConfigError& mistake) {
        if (world.rank() == 0) {
            std::fprintf(stderr, "nearstep: %s\n", mistake.what());
        }
        return 2;
    }
}

// Makes `descriptor` refer to the file.
void redirect(int descriptor, const std::string& file) {
    const Descriptor output(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (output.get() < 0 || ::dup2(output.get(), descriptor) < 0) {
        throw IoError(text("The output cannot go to ", file, "."));
    }
}

void serve(const mpi::Communicator& world, const std::string& folder) {
    std::ifstream commands(text(folder, "/commands-", world.rank()));
    std::ofstream codes(text(folder, "/codes-", world.rank()));
    for (std::string line; std::getline(commands, line);) {
        const nlohmann::json command = nlohmann::json::parse(line);
        redirect(STDOUT_FILENO, command.at("stdout"));
        redirect(STDERR_FILENO, command.at("stderr"));
        ::setenv("NEARSTEP_FAULT", command.at("fault").get<std::string>().c_str(), 1);
        const int code = exit_code_of(world, command.at("arguments"));
        std::cout.flush();
        std::fflush(nullptr);
        codes << code << std::endl;  // NOLINT(performance-avoid-endl): it is waited for
    }
}

}  // namespace
}  // namespace nearstep

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    const nearstep::mpi::Session session;
    const auto world = nearstep::mpi::Communicator::world(std::chrono::seconds(120));
    nearstep::expects(argc == 2, "the folder of the pipes is given");
    nearstep::serve(world, argv[1]);
    return 0;
}

// The command report, which becomes a Python program. Used by main.cpp and commands.cpp.
#include "app/commands.hpp"
#include "base/error.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;

constexpr const char* kProgram = "nearstep-report";

// The Python program beside this one or, if this one is where it was built, in the .venv of its
// checkout; else its bare name, which is searched on the path. Other folders may be anybody's.
std::string find_program() {
    std::error_code error;
    const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
    std::vector<fs::path> places = {here / kProgram};
    if (fs::equivalent(here, NEARSTEP_BUILD_FOLDER, error)) {
        places.push_back(fs::path(NEARSTEP_CHECKOUT) / ".venv/bin" / kProgram);
    }
    for (const fs::path& place : places) {
        if (::access(place.c_str(), X_OK) == 0) {
            return place;
        }
    }
    return kProgram;
}

bool is_other_rank() {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    return rank != nullptr && std::string(rank) != "0";
}

}  // namespace

bool is_report(int argc, const char* const* argv) {
    return argc > 1 && std::strcmp(argv[1], "report") == 0;
}

int run_report(int argc, char** argv) {
    if (is_other_rank()) {
        return 0;
    }
    std::string program = find_program();
    std::vector<char*> words = {program.data()};
    words.insert(words.end(), argv + 2, argv + argc);
    words.push_back(nullptr);
    ::execvp(program.c_str(), words.data());
    std::cerr << "nearstep: " << program << " cannot be started (" << std::strerror(errno)
              << "): run launch/setup, or pip install . and put its folder on the PATH.\n";
    return 2;
}

void add_report(CLI::App& program, Action& action) {
    program
        .add_subcommand("report",
                        "Make one HTML page of results: runs, comparisons, plans, experiments, and "
                        "what bounds a step. Example:\n  nearstep report runs")
        ->allow_extras()
        ->callback([&action] {
            action = [](const mpi::Communicator&) {
                throw ConfigError("report must be the first word: type nearstep report FOLDER.");
            };
        });
}

}  // namespace nearstep::app

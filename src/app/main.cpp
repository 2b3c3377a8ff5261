// The program nearstep.
#include "app/commands.hpp"
#include "mpi/communicator.hpp"
#include "mpi/session.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>

namespace {

// PyTorch's threads spin while they wait for each other, by default so long that a step takes ten
// times as long beside other work. OpenMP reads how long before main(), so the program starts
// itself once more. If that fails, it goes on as it is.
void limit_spinning(int argc, char** argv) {
    const std::string_view command = argc > 1 ? argv[1] : "";
    const char* threads = std::getenv("OMP_NUM_THREADS");
    const bool is_set =
        std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr;
    if (is_set || (command != "train" && command != "compare") ||
        (threads != nullptr && std::string_view(threads) == "1")) {
        return;
    }
    std::error_code unused;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unused);
    ::setenv("GOMP_SPINCOUNT", "1000", 1);
    ::execv(program.c_str(), argv);
}

// A descriptor below 3 that is closed would be given to the next file that is opened, such as one
// of state, and messages would be written into it.
void fill_standard_descriptors() {
    for (int number = 0; number < 3; ++number) {
        if (::fcntl(number, F_GETFD) < 0) {
            static_cast<void>(::open("/dev/null", O_RDWR));  // takes the lowest free number
        }
    }
}

// Says so if what was printed is lost. Training goes on without it; for all other commands it is
// the result.
int code_with_output(int code, std::string_view command) {
    std::cout.flush();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
        return code;
    }
    std::cerr << "nearstep: Not all that was printed could be written to the standard output: "
                 "direct it to a place that has room.\n";
    return code == 0 && command != "train" ? 2 : code;
}

}  // namespace

// Nothing is caught: the terminate handler of mpi::Session reports the error and ends all ranks.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    fill_standard_descriptors();
    limit_spinning(argc, argv);
    if (nearstep::app::is_report(argc, argv)) {
        return nearstep::app::run_report(argc, argv);
    }
    const nearstep::mpi::Session session;
    const auto world = nearstep::mpi::Communicator::world(std::chrono::seconds(120));
    const int code = nearstep::app::run_command(world, argc, argv);
    return code_with_output(code, argc > 1 ? argv[1] : "");
}

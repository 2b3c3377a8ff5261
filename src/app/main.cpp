// The program nearstep.
#include "app/commands.hpp"
#include "mpi/communicator.hpp"
#include "mpi/session.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>

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

}  // namespace

// Nothing is caught: the terminate handler of mpi::Session reports the error and ends all ranks.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    limit_spinning(argc, argv);
    if (nearstep::app::is_report(argc, argv)) {
        return nearstep::app::run_report(argc, argv);
    }
    const nearstep::mpi::Session session;
    const auto world = nearstep::mpi::Communicator::world(std::chrono::seconds(120));
    return nearstep::app::run_command(world, argc, argv);
}

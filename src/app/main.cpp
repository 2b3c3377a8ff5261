// The program nearstep.
#include "app/commands.hpp"
#include "mpi/communicator.hpp"
#include "mpi/session.hpp"

#include <chrono>

// Nothing is caught: the terminate handler of mpi::Session reports the error and ends all ranks.
int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape)
    if (nearstep::app::is_report(argc, argv)) {
        return nearstep::app::run_report(argc, argv);
    }
    const nearstep::mpi::Session session(argc, argv);
    const auto world = nearstep::mpi::Communicator::world(std::chrono::seconds(120));
    return nearstep::app::run_command(world, argc, argv);
}

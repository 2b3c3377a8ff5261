// Starts and ends MPI where there are several ranks, and ends all ranks after an error. Used by
// main and the MPI thread.
#include "mpi/session.hpp"

#include "base/awake_time.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/machine.hpp"
#include "base/number_list.hpp"
#include "base/wording.hpp"
#include "mpi/call.hpp"
#include "mpi/launch.hpp"
#include "mpi/mpi_library.hpp"

#include <sys/prctl.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <thread>

namespace nearstep::mpi {

namespace {

constexpr int kUsageExitCode = 2;
constexpr int kFailureExitCode = 1;
constexpr const char* kOutOfMemory =
    "There is not enough host memory: lower train.micro_batch or model.context, use a smaller "
    "model or fewer ranks per host.";

std::thread::id main_thread;  // NOLINT: the terminate handler has no other way to know it

int world_rank() {
    int rank = 0;
    if (is_running()) {
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    }
    return rank;
}

// True if all ranks call this within the limit.
bool all_ranks_arrive(std::chrono::seconds limit) {
    if (!is_running()) {
        return true;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) {
        return false;
    }
    AwakeTime time;
    int is_done = 0;
    while (is_done == 0 && time.look() < limit) {
        if (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return is_done != 0;
}

bool end() { return !is_running() || MPI_Finalize() == MPI_SUCCESS; }

// A fault may reach all ranks at once. The job ends when one of them ends, so ranks behind the
// first ones speak only if these do not. mpirun kills ranks a second after it asks them to end.
void let_first_ranks_speak(int rank) {
    if (rank >= static_cast<int>(kMostNamed)) {
        std::this_thread::sleep_for(std::chrono::seconds(4));
    }
}

// A name in a reason may have any character.
[[noreturn]] void end_with_usage_error(const std::string& sentence) {
    const std::string reason = on_one_line(sentence);
    const int rank = world_rank();
    if (rank == 0) {
        std::fprintf(stderr, "nearstep: %s\n", reason.c_str());
    }
    if (std::this_thread::get_id() == main_thread && all_ranks_arrive(std::chrono::seconds(10))) {
        end();
        std::_Exit(kUsageExitCode);
    }
    if (rank != 0) {
        let_first_ranks_speak(rank);
        std::fprintf(stderr, "nearstep: rank %d: %s\n", rank, reason.c_str());
    }
    abort_ranks(kUsageExitCode);
}

[[noreturn]] void end_with_failure(const std::string& reason) {
    let_first_ranks_speak(world_rank());
    std::fprintf(stderr, "nearstep: rank %d: %s\n", world_rank(), reason.c_str());
    abort_ranks(kFailureExitCode);
}

// Cuts the stack frames that PyTorch adds from a library's message.
std::string sentence_of(const std::string& what) {
    if (what.find("DefaultCPUAllocator") != std::string::npos) {
        return kOutOfMemory;
    }
    return what.substr(0, what.find("\nframe #"));
}

[[noreturn]] void end_program() {
    std::fflush(stdout);
    const std::exception_ptr current = std::current_exception();
    if (!current) {
        end_with_failure("The program was terminated without an exception.");
    }
    try {
        std::rethrow_exception(current);
    } catch (const ConfigError& error) {
        end_with_usage_error(error.what());
    } catch (const std::bad_alloc&) {
        end_with_failure(kOutOfMemory);
    } catch (const std::exception& error) {
        end_with_failure(sentence_of(error.what()));
    } catch (...) {
        end_with_failure("An unknown exception was thrown.");
    }
}

}  // namespace

void check(int code, const Where& where) {
    if (code == MPI_SUCCESS) {
        return;
    }
    std::array<char, MPI_MAX_ERROR_STRING> reason{};
    int length = 0;
    MPI_Error_string(code, reason.data(), &length);
    throw MpiError(text("MPI failed at ", where.file, ":", where.line, ": ", reason.data(), "."));
}

namespace {

// Starts MPI if this process is one of several ranks.
void start() {
    switch (launch_of_process()) {
        case Launch::alone:
            return;
        case Launch::strangers:  // they would all do the same work
            throw ConfigError(
                tasks_of_step() > 1
                    ? text("srun has started ", tasks_of_step(),
                           " tasks without a PMI that this MPI knows, so they cannot find each "
                           "other: start them with srun --mpi=pmix, with mpirun, or with "
                           "launch/slurm.")
                    : text("The launcher of another MPI has started ", processes_of_pmi(),
                           " processes (PMI_SIZE), which cannot find each other by Open MPI: start "
                           "them with Open MPI's mpirun, or with nearstep-run."));
        case Launch::ranks:
            break;
    }
    if (!is_loaded()) {
        throw ConfigError(
            "This process is one of several ranks, and Open MPI's libmpi.so.40, by which they find "
            "each other, was not found: type pip install 'nearstep[mpi]', or install the system's "
            "Open MPI.");
    }
    lengthen_short_sleeps(ranks_of_host(), host_cores());
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
    write_log_of(world_rank());
}

// Before MPI runs, nothing can report an exception.
void start_for_program() try { start(); } catch (const ConfigError& error) {
    const char* task = std::getenv(tasks_of_step() > 1 ? "SLURM_PROCID" : "PMI_RANK");
    if (task == nullptr || std::string(task) == "0") {
        std::fprintf(stderr, "nearstep: %s\n", error.what());
    } else {
        // The launcher may end all processes when one has ended, so the first one must have spoken.
        std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    std::_Exit(kUsageExitCode);
}

void return_errors() {
    if (is_running()) {
        check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    }
}

}  // namespace

Session::Session() {
    std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit on file sizes fails with EFBIG
    start_for_program();
    return_errors();
    main_thread = std::this_thread::get_id();
    std::set_terminate(end_program);
}

Session::~Session() { end(); }

namespace {

bool is_started_here = false;  // NOLINT: MPI itself is global

bool is_over() {
    int is_over = 0;
    if (is_loaded()) {
        MPI_Finalized(&is_over);
    }
    return is_over != 0;
}

}  // namespace

void start_for_library() {
    if (is_over()) {
        throw ConfigError("MPI has ended in this process and cannot start again: start a new one.");
    }
    if (!is_running()) {
        start();
        is_started_here = is_running();
    } else {
        int provided = MPI_THREAD_SINGLE;
        check(MPI_Query_thread(&provided));
        int is_main = 0;
        check(MPI_Is_thread_main(&is_main));
        if (provided < MPI_THREAD_SERIALIZED && is_main == 0) {
            throw ConfigError(
                "MPI was started so that only the thread that started it may call it: start it "
                "with MPI_THREAD_MULTIPLE, or let nearstep start it.");
        }
    }
    return_errors();
}

bool end_for_library(std::chrono::seconds limit) {
    return !is_started_here || (all_ranks_arrive(limit) && end());
}

void lengthen_short_sleeps(int ranks, int cores) {
    const int slack_ns = ::prctl(PR_GET_TIMERSLACK);  // by how much a sleep may be longer
    if (ranks > cores && slack_ns > 0) {
        ::prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_ns) *
                                       static_cast<unsigned long>(ranks) /
                                       static_cast<unsigned long>(cores));
    }
}

bool is_running() {
    int is_up = 0;
    if (is_loaded()) {
        MPI_Initialized(&is_up);
    }
    return is_up != 0 && !is_over();
}

void abort_ranks(int exit_code) {
    if (is_running()) {
        MPI_Abort(MPI_COMM_WORLD, exit_code);
    }
    std::_Exit(exit_code);
}

}  // namespace nearstep::mpi

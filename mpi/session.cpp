// Starts and ends MPI, and ends all ranks after an error. Used by main and the MPI thread.
#include "mpi/session.hpp"

#include "base/error.hpp"
#include "mpi/call.hpp"
#include "mpi/library.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace nearstep::mpi {

namespace {

constexpr int kUsageExitCode = 2;
constexpr int kFailureExitCode = 1;

std::thread::id main_thread;  // NOLINT: the terminate handler has no other way to know it

int world_rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

// True if all ranks call this within the limit.
bool all_ranks_arrive(std::chrono::seconds limit) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibarrier(MPI_COMM_WORLD, &request) != MPI_SUCCESS) {
        return false;
    }
    const auto deadline = std::chrono::steady_clock::now() + limit;
    int is_done = 0;
    while (is_done == 0 && std::chrono::steady_clock::now() < deadline) {
        if (MPI_Test(&request, &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return false;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return is_done != 0;
}

[[noreturn]] void end_with_usage_error(const std::string& reason) {
    const int rank = world_rank();
    if (rank == 0) {
        std::fprintf(stderr, "nearstep: %s\n", reason.c_str());
    }
    if (std::this_thread::get_id() == main_thread && all_ranks_arrive(std::chrono::seconds(10))) {
        MPI_Finalize();
        std::_Exit(kUsageExitCode);
    }
    if (rank != 0) {
        std::fprintf(stderr, "nearstep: rank %d: %s\n", rank, reason.c_str());
    }
    MPI_Abort(MPI_COMM_WORLD, kUsageExitCode);
    std::_Exit(kUsageExitCode);
}

[[noreturn]] void end_with_failure(const std::string& reason) {
    std::fprintf(stderr, "nearstep: rank %d: %s\n", world_rank(), reason.c_str());
    MPI_Abort(MPI_COMM_WORLD, kFailureExitCode);
    std::_Exit(kFailureExitCode);
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
    } catch (const std::exception& error) {
        end_with_failure(error.what());
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

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

int tasks_of_step() {
    const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
    return is_set("SLURM_STEP_ID") && tasks != nullptr
               ? static_cast<int>(std::strtol(tasks, nullptr, 10))
               : 1;
}

// How this process came to be, as far as Slurm matters.
enum class Start {
    elsewhere,  // without Slurm, or by mpirun
    alone,      // by a shell in a job, or as the only task of a step
    together,   // as one of several tasks of a step, in which MPI finds the others
    separate    // as one of several tasks of a step, in which MPI cannot find the others
};

Start start_of_process() {
    if (!is_set("SLURM_JOB_ID") || is_set("OMPI_COMM_WORLD_SIZE")) {
        return Start::elsewhere;
    }
    // With --pty only the first task has the terminal.
    if (tasks_of_step() == 1 || is_set("SLURM_PTY_PORT")) {
        return Start::alone;
    }
    const bool has_pmix = is_set("PMIX_NAMESPACE");
    const bool has_pmi2 = is_set("PMI_FD") && speaks_pmi2();
    return has_pmix || has_pmi2 ? Start::together : Start::separate;
}

// The variables by which MPI would look for other ranks, of a process that has none. In a shell of
// a job it would end: the shell's first program already used them up, or there is no PMI. They are
// hidden while MPI starts.
class HiddenSlurm {
public:
    HiddenSlurm() {
        const Start start = start_of_process();
        if (start == Start::separate) {
            // They would all do the same work.
            throw ConfigError(
                text("srun has started ", tasks_of_step(),
                     " tasks without a PMI that this MPI knows, so they cannot find each other: "
                     "start them with srun --mpi=pmix, with mpirun, or with launch/slurm."));
        }
        if (start != Start::alone) {
            return;
        }
        for (char** entry = environ; *entry != nullptr; ++entry) {
            const std::string_view variable = *entry;
            const std::size_t end = variable.find('=');
            const bool is_hidden = variable.starts_with("SLURM") || variable.starts_with("PMI");
            if (is_hidden && end != std::string_view::npos) {
                hidden_.emplace_back(variable.substr(0, end), variable.substr(end + 1));
            }
        }
        for (const auto& [name, value] : hidden_) {
            ::unsetenv(name.c_str());
        }
    }
    HiddenSlurm(const HiddenSlurm&) = delete;
    HiddenSlurm& operator=(const HiddenSlurm&) = delete;
    ~HiddenSlurm() {
        for (const auto& [name, value] : hidden_) {
            ::setenv(name.c_str(), value.c_str(), 1);
        }
    }

private:
    std::vector<std::pair<std::string, std::string>> hidden_;
};

// Before MPI runs, nothing can report an exception.
HiddenSlurm hide_slurm() try { return {}; } catch (const ConfigError& error) {
    const char* task = std::getenv("SLURM_PROCID");
    if (task == nullptr || std::string(task) == "0") {
        std::fprintf(stderr, "nearstep: %s\n", error.what());
    } else {
        // srun may end all tasks when one has ended, so the first one must have spoken.
        std::this_thread::sleep_for(std::chrono::seconds(2));
    }
    std::_Exit(kUsageExitCode);
}

}  // namespace

Session::Session(int& argc, char**& argv) {
    int provided = MPI_THREAD_SINGLE;
    const HiddenSlurm hidden = hide_slurm();
    check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided));
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    main_thread = std::this_thread::get_id();
    std::set_terminate(end_program);
}

Session::~Session() { MPI_Finalize(); }

namespace {

bool is_started_here = false;  // NOLINT: MPI itself is global

}  // namespace

void start_for_library() {
    int is_up = 0;
    int is_over = 0;
    check(MPI_Initialized(&is_up));
    check(MPI_Finalized(&is_over));
    if (is_over != 0) {
        throw ConfigError("MPI has ended in this process and cannot start again: start a new one.");
    }
    int provided = MPI_THREAD_SINGLE;
    if (is_up == 0) {
        const HiddenSlurm hidden;
        check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
        is_started_here = true;
    } else {
        check(MPI_Query_thread(&provided));
        int is_main = 0;
        check(MPI_Is_thread_main(&is_main));
        if (provided < MPI_THREAD_SERIALIZED && is_main == 0) {
            throw ConfigError(
                "MPI was started so that only the thread that started it may call it: start it "
                "with MPI_THREAD_MULTIPLE, or let nearstep start it.");
        }
    }
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
}

bool end_for_library(std::chrono::seconds limit) {
    if (!is_started_here) {
        return true;
    }
    if (!all_ranks_arrive(limit)) {
        return false;
    }
    return MPI_Finalize() == MPI_SUCCESS;
}

bool is_running() {
    int is_up = 0;
    int is_over = 0;
    MPI_Initialized(&is_up);
    MPI_Finalized(&is_over);
    return is_up != 0 && is_over == 0;
}

void abort_ranks(int exit_code) {
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
}

}  // namespace nearstep::mpi

// Checks and times the checkpoint folder. Called by Run and train/loop.cpp before the first step.
#include "engine/state/checkpoint_folder.hpp"

#include "base/descriptor.hpp"
#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/folder_tree.hpp"
#include "base/formatted.hpp"
#include "base/machine.hpp"
#include "base/plain_file.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "checkpoint/checkpoint_files.hpp"
#include "engine/state/state.hpp"
#include "store/storage_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <span>

namespace nearstep::engine {

namespace {

// Per rank: enough to time its disk, but short compared with a start.
constexpr std::size_t kProbedBytes = 16 * MiB;

// A temporary file in the folder, removed by the destructor.
class ProbeFile {
public:
    // `needed_bytes`: of a checkpoint in the folder.
    ProbeFile(const std::string& folder, std::size_t needed_bytes)
        : folder_(folder), needed_bytes_(needed_bytes) {
        std::string name = folder + "/nearstep-probe-XXXXXX";
        file_ = Descriptor(::mkostemp(name.data(), O_CLOEXEC));
        expect(static_cast<bool>(file_));
        ::unlink(name.c_str());
    }

    void write(std::span<const float> values) {
        expect(write_all(file_, std::as_bytes(values)) == 0);
    }

    void sync() { expect(::fsync(file_.get()) == 0); }

private:
    void expect(bool is_done) const {
        if (!is_done) {
            checkpoint::refuse_write(folder_, errno, needed_bytes_);
        }
    }

    std::string folder_;
    std::size_t needed_bytes_;
    Descriptor file_;
};

// Rank 0 makes a file with a unique name in `place`.
std::string make_token(const mpi::Communicator& world, const std::string& folder,
                       const std::string& place) {
    std::string path;
    world.together([&] {
        if (world.rank() != 0) {
            return;
        }
        const char* const advice = " in which it is by default, to a folder that you may write to.";
        if (const std::string link = broken_link_in(folder); !link.empty()) {
            throw PathError(
                text("The checkpoint folder ", folder, " cannot be made, since ", link,
                     " is a link that leads nowhere: set checkpoint.path, or ", Term::path, advice),
                ENOENT);
        }
        std::random_device source;
        path = text(place, "/nearstep-shared-", to_hex(source()), to_hex(source()));
        const Descriptor token(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
        if (!token) {
            throw_path_error(text("The checkpoint folder ", folder, " cannot be written"), errno,
                             text("set checkpoint.path, or ", Term::path, advice));
        }
    });
    return world.broadcast(path, 0);
}

std::string seconds_text(double seconds) {
    return formatted(seconds < 10 ? "%.1f s" : "%.0f s", seconds);
}

}  // namespace

void check_shared_folder(const mpi::Communicator& world, const std::string& folder) {
    const std::string place = world.broadcast(store::nearest_present(folder), 0);
    const std::string token = make_token(world, folder, place);
    const std::string host_of_rank_0 = world.broadcast(own_host(), 0);
    const auto look = [&] {
        if (store::nearest_present(folder) != place || !is_present(token)) {
            throw ConfigError(text("The checkpoint folder ", folder, " of host ", host_of_rank_0,
                                   " is not there on host ", own_host(), " (rank ", world.rank(),
                                   "): set checkpoint.path to a folder that all hosts share."));
        }
    };
    const auto remove_token = [&] {
        if (world.rank() == 0) {
            ::unlink(token.c_str());
        }
    };
    try {
        world.together(look);
    } catch (const Error&) {
        remove_token();
        throw;
    }
    remove_token();
}

CheckpointTime State::expect_checkpoint(const std::string& folder) {
    double mine = 0;
    double probed = 0;
    double seconds = 0;
    resources_.world.together([&] {
        if (resources_.world.rank() == 0) {
            checkpoint::make_folder(folder);
        }
    });
    const auto probe = [&] {
        ProbeFile file(folder, 3 * resources_.layout.elems * sizeof(float));
        Stopwatch watch;
        visit(alone_, [&](const auto& of, const csd::StateArrays& state) {
            if (!resources_.is_in_first_copy()) {
                return;  // a checkpoint contains one copy
            }
            const auto bytes = static_cast<double>(3 * of.elems() * sizeof(float));
            mine += bytes;
            if (probed >= static_cast<double>(kProbedBytes)) {
                return;
            }
            of.read(generation(), state);
            for (const std::span<const float> values :
                 {state.master, state.moment1, state.moment2}) {
                file.write(values);
            }
            probed += bytes;
        });
        file.sync();
        seconds = probed > 0 ? watch.lap() * mine / probed : 0;
    };
    resources_.world.together([&] { checkpoint::as_fault_of_run(probe); });
    CheckpointTime time;
    const std::vector<double> of_ranks =
        resources_.world.all_gather(std::array{seconds, mine, probed});
    for (std::size_t i = 0; i < of_ranks.size(); i += 3) {
        time.seconds = std::max(time.seconds, of_ranks[i]);
        time.bytes += of_ranks[i + 1];
        time.probed_bytes += of_ranks[i + 2];
    }
    return time;
}

std::vector<std::string> describe_notice(const config::EngineSettings& settings,
                                         const CheckpointTime& time, int notice_s) {
    if (settings.csd.durability == config::Durability::step) {
        return notice_s == 0 ? std::vector<std::string>{}
                             : std::vector{text("a notice of ", notice_s,
                                                " s leaves time for the step under way: every step "
                                                "is durable, nothing else is written")};
    }
    if (settings.csd.durability == config::Durability::none) {
        return notice_s == 0 ? std::vector<std::string>{}
                             : std::vector{text("warning: a stop after the notice of ", notice_s,
                                                " s loses all steps: set ", Term::durability,
                                                " to \"step\" or "
                                                "\"checkpoint\"")};
    }
    std::string line =
        text("a checkpoint takes about ", seconds_text(time.seconds), " (", human_bytes(time.bytes),
             ", by ", human_bytes(time.probed_bytes), " read and written now)");
    if (notice_s == 0) {
        return {line};
    }
    std::vector<std::string> lines = {text(line, ", the notice is ", notice_s, " s")};
    if (time.seconds > notice_s) {
        lines.push_back(
            text("warning: a checkpoint does not fit in the notice, and the steps "
                 "since the one before would be lost: ask for a longer notice (sbatch "
                 "--signal=USR1@SECONDS) or set ",
                 Term::durability, " to \"step\""));
    }
    return lines;
}

}  // namespace nearstep::engine

// The order of a run's collective calls of MPI on two ranks: at a start, in steps, and at a
// restart. A collective that is added, moved or dropped changes a list here.
#include "base/executor.hpp"
#include "base/machine.hpp"
#include "engine/run_fixture.hpp"
#include "support/test.hpp"

#include <mpi.h>

#include <algorithm>
#include <optional>

namespace {

std::vector<std::string>* recorded = nullptr;  // null: nothing is recorded

void record(const char* name) {
    if (recorded != nullptr) {
        recorded->emplace_back(name);
    }
}

}  // namespace

// MPI lets a program define its functions and call the library's by a second name.
extern "C" {

int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
    record("barrier");
    return PMPI_Ibarrier(comm, request);
}

int MPI_Ibcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
    record("broadcast");
    return PMPI_Ibcast(buffer, count, type, root, comm, request);
}

int MPI_Iallreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
    record(op == MPI_SUM ? "sum" : op == MPI_MIN ? "smallest" : "reduce");
    return PMPI_Iallreduce(send, receive, count, type, op, comm, request);
}

int MPI_Iallgather(const void* send, int count, MPI_Datatype type, void* receive, int receive_count,
                   MPI_Datatype receive_type, MPI_Comm comm, MPI_Request* request) {
    record("gather");
    return PMPI_Iallgather(send, count, type, receive, receive_count, receive_type, comm, request);
}

int MPI_Ialltoallv(const void* send, const int* send_counts, const int* send_places,
                   MPI_Datatype send_type, void* receive, const int* receive_counts,
                   const int* receive_places, MPI_Datatype receive_type, MPI_Comm comm,
                   MPI_Request* request) {
    record("all_to_all");
    return PMPI_Ialltoallv(send, send_counts, send_places, send_type, receive, receive_counts,
                           receive_places, receive_type, comm, request);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
    record("duplicate");
    return PMPI_Comm_dup(comm, made);
}

int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm* made) {
    record("split");
    return PMPI_Comm_split(comm, colour, key, made);
}

int MPI_Comm_free(MPI_Comm* comm) {
    record("free");
    return PMPI_Comm_free(comm);
}

}  // extern "C"

namespace nearstep::engine {
namespace {

// The collectives of `work`, where those that repeat are counted: "gather sum*3".
template <typename Work>
std::string collectives_of(const Work& work) {
    std::vector<std::string> all;
    recorded = &all;
    work();
    recorded = nullptr;
    std::string said;
    for (std::size_t begin = 0; begin < all.size();) {
        std::size_t end = begin;
        while (end < all.size() && all[end] == all[begin]) {
            ++end;
        }
        said += (said.empty() ? "" : " ") + all[begin] +
                (end - begin > 1 ? "*" + std::to_string(end - begin) : "");
        begin = end;
    }
    return said;
}

class Collectives : public testing::Test {
protected:
    engine::Run open(StartRequest::Kind kind) const {
        return engine::Run::open(world, settings, layout, {.kind = kind},
                                 {.model = "a block", .steps = 4}, {});
    }

    void take_step(engine::Run& run) const {
        run.begin_forward();
        run.await_parameters(0, {layout.blocks.data(), 1}, {});
        run.end_pass();
        run.begin_backward({.groups = {Hyper{}}, .clip_norm = 1});
        std::ranges::fill(run.gradient_space(0), 0.5F);
        run.put_gradient(0);
        run.end_pass();
        run.end_gradients();
        run.update();
        run.finish();
        run.commit();
    }

    mpi::Communicator world = mpi::Communicator::world(std::chrono::seconds(100));
    Layout layout = layout_of_blocks({140000}, Dtype::bf16);
    config::EngineSettings settings = settings_in(new_folder(world, "collectives"), 1);
};

TEST_F(Collectives, OfAStartOfStepsAndOfARestartHaveOneOrder) {
    if (world.size() != 2) {
        GTEST_SKIP() << "the lists are those of two ranks";
    }
#ifndef NDEBUG
    GTEST_SKIP() << "the lists are those of a release build: others open shared memory otherwise";
#endif
    const std::string opened =
        "broadcast smallest*3 broadcast*2 smallest*6 gather smallest broadcast*2";
    // No rank has a GPU, so that no groups are formed to ask for NCCL.
    const std::string resources = "barrier split barrier split barrier split smallest sum*2";
    const std::string step = "all_to_all*2 sum gather sum barrier";
    const std::string end = "free*3";
    std::optional<engine::Run> run;
    EXPECT_EQ(collectives_of([&] { run = open(StartRequest::Kind::fresh); }),
              "barrier smallest gather free smallest*2 " + opened + " smallest*6 " + resources);
    EXPECT_EQ(collectives_of([&] { run->begin(each_by([](std::size_t) { return 1.0F; })); }),
              "smallest*2 barrier split smallest free smallest*2 sum broadcast*2 "
              "smallest broadcast*2 smallest*7 sum smallest barrier");
    for (int number = 0; number < 2; ++number) {
        EXPECT_EQ(collectives_of([&] { take_step(*run); }), step);
    }
    EXPECT_EQ(collectives_of([&] { run.reset(); }), end);
    EXPECT_EQ(collectives_of([&] { run = open(StartRequest::Kind::resume); }),
              "smallest*2 " + opened + " smallest*5 " + resources);
    EXPECT_EQ(collectives_of([&] { run->begin({}); }),
              "smallest*4 gather smallest barrier*2 smallest*4");
    EXPECT_EQ(run->steps_done(), 2);
    EXPECT_EQ(collectives_of([&] { take_step(*run); }), step);
    EXPECT_EQ(collectives_of([&] { run.reset(); }), end);
}

// A start tells how many ranks there are, whoever has started these.
TEST_F(Collectives, OfAStartShareTheCoresOfTheHost) {
    Environment environment;
    environment.set("OMP_NUM_THREADS", "");
    environment.set("LOCAL_WORLD_SIZE", "");
    share_cores(0);
    const engine::Run run = open(StartRequest::Kind::fresh);
    EXPECT_EQ(pool_threads(),
              std::clamp(std::min(host_cores() / world.size(), usable_cores()), 1, 16));
}

}  // namespace
}  // namespace nearstep::engine

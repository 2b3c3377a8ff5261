// Tests the collective calls of a communicator.
#include "mpi/communicator.hpp"

#include "mpi/topology.hpp"
#include "support/test.hpp"

#include <cerrno>

namespace nearstep::mpi {
namespace {

Communicator make_world() { return Communicator::world(std::chrono::seconds(30)); }

TEST(Communicator, AgreesOnlyIfEveryRankDoes) {
    const Communicator world = make_world();
    EXPECT_TRUE(world.agree(true));
    EXPECT_FALSE(world.agree(false));
    EXPECT_EQ(world.agree(world.rank() != world.size() - 1), false);
}

TEST(Communicator, TellsWhatForTheRanksMeet) {
    const Communicator world = make_world();
    for (int rank = 0; rank < world.size(); ++rank) {
        const bool is_first = world.rank() < rank;
        const MatchedCalls matched =
            world.match_calls(is_first ? 5 : 3, world.rank() == rank, std::chrono::seconds(30));
        EXPECT_EQ(matched.lowest, 3);
        EXPECT_EQ(matched.rank, rank);
        EXPECT_EQ(matched.highest, rank == 0 ? 3 : 5);
        EXPECT_TRUE(matched.is_raised);
        EXPECT_FALSE(world.match_calls(0, false, std::chrono::seconds(30)).is_raised);
    }
}

TEST(Communicator, BroadcastsTextsOfAnyLength) {
    const Communicator world = make_world();
    const int root = world.size() - 1;
    for (const std::string& value : {std::string(), std::string("x"), std::string(100000, 'y')}) {
        EXPECT_EQ(world.broadcast(world.rank() == root ? value : "other", root), value);
    }
}

TEST(Communicator, SumsWhatSingleRanksGiveExactly) {
    const Communicator world = make_world();
    std::vector<double> values(static_cast<std::size_t>(world.size()), 0.0);
    values[static_cast<std::size_t>(world.rank())] = 0.1 * (world.rank() + 1);
    world.sum(std::span(values));
    for (int rank = 0; rank < world.size(); ++rank) {
        EXPECT_EQ(values[static_cast<std::size_t>(rank)], 0.1 * (rank + 1));
    }
}

TEST(Communicator, GathersInRankOrder) {
    const Communicator world = make_world();
    const auto all = world.all_gather(std::array{1.0 * world.rank(), 10.0 * world.rank()});
    for (int rank = 0; rank < world.size(); ++rank) {
        EXPECT_EQ(all[2 * static_cast<std::size_t>(rank)], rank);
        EXPECT_EQ(all[2 * static_cast<std::size_t>(rank) + 1], 10 * rank);
    }
}

TEST(Communicator, ExchangesBlocksOfDifferentSizes) {
    const Communicator world = make_world();
    // Rank r sends r + s + 1 bytes of value 16 r + s to rank s; with several ranks, rank 0 gets
    // none.
    const auto size_between = [&](int from, int to) {
        return to == 0 && world.size() > 1 ? std::size_t{0}
                                           : static_cast<std::size_t>(from + to + 1);
    };
    Blocks out;
    Blocks in;
    std::vector<std::byte> send;
    for (int to = 0; to < world.size(); ++to) {
        out.bytes.push_back(size_between(world.rank(), to));
        in.bytes.push_back(size_between(to, world.rank()));
        send.insert(send.end(), out.bytes.back(), static_cast<std::byte>(16 * world.rank() + to));
    }
    std::vector<std::byte> receive(in.total());
    world.all_to_all(send, out, receive, in);
    std::size_t at = 0;
    for (int from = 0; from < world.size(); ++from) {
        for (std::size_t i = 0; i < size_between(from, world.rank()); ++i, ++at) {
            EXPECT_EQ(receive[at], static_cast<std::byte>(16 * from + world.rank()));
        }
    }
}

// Rank 0 sends to the last rank.
TEST(Communicator, ExchangesMoreThanTwoGiB) {
    if (std::getenv("NEARSTEP_LONG") == nullptr) {
        GTEST_SKIP() << "it takes 5 GB of memory: run it with NEARSTEP_LONG=1";
    }
    const Communicator world = Communicator::world(std::chrono::minutes(5));
    const auto ranks = static_cast<std::size_t>(world.size());
    constexpr std::size_t kBytes = (std::size_t{9} << 28) + 4096;
    Blocks out{.bytes = std::vector<std::size_t>(ranks)};
    Blocks in{.bytes = std::vector<std::size_t>(ranks)};
    std::vector<std::byte> send;
    if (world.rank() == 0) {
        out.bytes.back() = kBytes;
        send.resize(kBytes);
        send.back() = std::byte{7};
    }
    if (world.rank() == world.size() - 1) {
        in.bytes.front() = kBytes;
    }
    std::vector<std::byte> receive(in.total());
    world.all_to_all(send, out, receive, in);
    if (!receive.empty()) {
        EXPECT_EQ(receive.back(), std::byte{7});
    }
}

TEST(Communicator, PassesMessagesRoundTheRing) {
    const Communicator world = make_world();
    if (world.size() == 1) {
        GTEST_SKIP() << "a rank alone has nobody to send to";
    }
    std::array<std::byte, 3> out{};
    std::array<std::byte, 3> in{};
    out.fill(static_cast<std::byte>(world.rank()));
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    Request receive = world.start_receive(in, previous, 5);
    Request send = world.start_send(out, next, 5);
    receive.wait();
    send.wait();
    EXPECT_EQ(in[2], static_cast<std::byte>(previous));
}

TEST(Communicator, WaitsForNothingMoreOnceARankDidNotTakePart) {
    const Communicator world = Communicator::world(std::chrono::seconds(5));
    if (world.size() == 1) {
        GTEST_SKIP() << "a rank alone waits for nobody";
    }
    std::array<std::byte, 3> bytes{};
    // A wait polls, which takes the thread's own time, on a machine of any speed.
    const auto polled = [](Request& request) {
        const std::clock_t before = std::clock();
        EXPECT_THROW(request.wait(), MpiError);
        return std::clock() - before;
    };
    {
        Request first = world.start_receive(bytes, world.rank(), 6);
        Request second = world.start_receive(bytes, world.rank(), 7);
        const std::clock_t whole = polled(first);
        EXPECT_LT(polled(first), whole / 2);
        EXPECT_LT(polled(second), whole / 2);
    }
    for (const int tag : {6, 7}) {  // so that MPI can end
        world.start_send(bytes, world.rank(), tag);
    }
    make_world().barrier();
}

TEST(Communicator, TellsAllRanksOfTheLowestRanksProblem) {
    const Communicator world = make_world();
    const int culprit = world.size() - 1;
    const auto fail = [&] {
        if (world.rank() == culprit) {
            throw ConfigError(text("rank ", world.rank(), " has no disk"));
        }
    };
    EXPECT_EQ(message_of<ConfigError>([&] { world.together(fail); }),
              text("rank ", culprit, " has no disk"));
    world.together([] {});  // later calls still work
    EXPECT_EQ(message_of([&] { world.on_rank_0([] { throw ConfigError("not here"); }); }),
              "not here");
}

TEST(Communicator, WaitsLongerForRanksWithMoreWork) {
    const Communicator world = Communicator::world(std::chrono::seconds(3));
    world.together([&] {
        if (world.rank() == 0) {
            std::this_thread::sleep_for(std::chrono::seconds(5));
        }
    });
    EXPECT_TRUE(world.agree(true));
}

TEST(Communicator, KeepsTheKindOfTheProblemOnAllRanks) {
    const Communicator world = make_world();
    const int culprit = world.size() - 1;
    const auto fail = [&] {
        if (world.rank() == culprit) {
            throw IoError(text("rank ", world.rank(), " cannot read"));
        }
    };
    EXPECT_EQ(message_of<IoError>([&] { world.together(fail); }),
              text("rank ", culprit, " cannot read"));
    try {
        world.together([&] {
            if (world.rank() == culprit) {
                throw PathError("the folder of a rank cannot be made", ENOTDIR);
            }
        });
        FAIL() << "together() must throw on every rank";
    } catch (const PathError& error) {
        EXPECT_STREQ(error.what(), "the folder of a rank cannot be made");
        EXPECT_EQ(error.code(), ENOTDIR);
    }
}

TEST(Communicator, SplitsByColourInRankOrder) {
    const Communicator world = make_world();
    const Communicator half = world.split(world.rank() % 2);
    EXPECT_EQ(half.rank(), world.rank() / 2);
    EXPECT_EQ(half.size(), (world.size() + 1 - world.rank() % 2) / 2);
}

TEST(Communicator, FindsThatRanksOfThisTestShareANode) {
    const Communicator world = make_world();
    EXPECT_EQ(discover_nodes(world).groups(), 1);
    EXPECT_EQ(discover_nodes(world, 2).groups(), (world.size() + 1) / 2);
    EXPECT_EQ(discover_nodes(world, 1).groups(), world.size());
}

// The others go on without rank 0. The limit is long enough for ranks that share a busy core.
TEST(Communicator, EndsAWaitAtItsTimeLimit) {
    const Communicator world = Communicator::world(std::chrono::seconds(3));
    std::array<std::byte, 1> in{};
    if (world.rank() == 0 && world.size() > 1) {
        Request never = world.start_receive(in, world.size() - 1, 77);
        EXPECT_THROW(never.wait(), MpiError);
        EXPECT_THROW(static_cast<void>(world.split(0)), MpiError);
    }
}

}  // namespace
}  // namespace nearstep::mpi

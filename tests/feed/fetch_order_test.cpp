// Tests the order in which blocks are fetched to slots.
#include "feed/fetch_order.hpp"

#include "support/test.hpp"

namespace nearstep::feed {
namespace {

// A GPT of `blocks` blocks whose last block also reads the first.
std::vector<Visit> tied(int blocks) {
    std::vector<Visit> reads;
    for (int block = 0; block < blocks; ++block) {
        reads.push_back({block});
    }
    if (blocks > 1) {
        reads.back().push_back(0);
    }
    return reads;
}

std::size_t times(const std::vector<Fetch>& fetches, int block) {
    return static_cast<std::size_t>(
        std::ranges::count(fetches, block, [](const Fetch& fetch) { return fetch.block; }));
}

// Every visit finds its blocks, and no slot is overwritten before its last reader.
void check(const std::vector<Visit>& visits, const std::vector<Fetch>& fetches, int slots) {
    std::map<int, int> held;       // slot, block
    std::map<int, int> last_read;  // slot, visit
    std::size_t next = 0;
    int before = 0;
    for (int visit = 0; visit < static_cast<int>(visits.size()); ++visit) {
        for (; next < fetches.size() && fetches[next].before == visit; ++next) {
            const Fetch& fetch = fetches[next];
            ASSERT_GE(fetch.slot, 0);
            ASSERT_LT(fetch.slot, slots);
            ASSERT_GE(fetch.before, before) << "in the order of the visits";
            before = fetch.before;
            const auto read = last_read.find(fetch.slot);
            ASSERT_EQ(fetch.after, read == last_read.end() ? -1 : read->second);
            ASSERT_LT(fetch.after, visit);
            for (const auto& [slot, block] : held) {
                ASSERT_NE(block, fetch.block) << "what is here is not fetched again";
            }
            held[fetch.slot] = fetch.block;
        }
        for (const int block : visits[static_cast<std::size_t>(visit)]) {
            const auto place = std::ranges::find_if(
                held, [block](const auto& entry) { return entry.second == block; });
            ASSERT_NE(place, held.end()) << "visit " << visit << " reads block " << block;
            last_read[place->first] = visit;
        }
    }
    EXPECT_EQ(next, fetches.size());
}

// The minimum number of fetches: each replaces the block that is needed again last.
std::size_t fewest(const std::vector<Visit>& visits, std::size_t slots) {
    std::set<int> held;
    std::size_t fetches = 0;
    for (std::size_t visit = 0; visit < visits.size(); ++visit) {
        for (const int block : visits[visit]) {
            fetches += held.insert(block).second ? 1 : 0;
        }
        while (held.size() > slots) {
            const auto next = [&](int block) {
                for (std::size_t later = visit; later < visits.size(); ++later) {
                    if (std::ranges::count(visits[later], block) > 0) {
                        return later;
                    }
                }
                return visits.size();
            };
            held.erase(*std::ranges::max_element(
                held, [&](int one, int other) { return next(one) < next(other); }));
        }
    }
    return fetches;
}

TEST(FetchOrder, BringsEachBlockOnceWhereAllHaveASlot) {
    for (int blocks = 1; blocks < 12; ++blocks) {
        const std::vector<Visit> visits = visits_of_step(tied(blocks));
        const std::vector<Fetch> fetches = order_fetches(visits, blocks, blocks);
        check(visits, fetches, blocks);
        EXPECT_EQ(fetches.size(), static_cast<std::size_t>(blocks));
        for (const Fetch& fetch : fetches) {
            EXPECT_EQ(fetch.slot, fetch.block);
            EXPECT_EQ(fetch.after, -1) << "nothing has to wait";
        }
    }
}

TEST(FetchOrder, BringsABlockTwiceAStepButForWhatStays) {
    constexpr int kBlocks = 34;  // a GPT of 32 layers
    const std::vector<Visit> visits = visits_of_step(tied(kBlocks));
    const std::vector<Fetch> ring = order_fetches(visits, kBlocks, 3);
    check(visits, ring, 3);
    for (int block = 1; block < kBlocks - 2; ++block) {
        EXPECT_EQ(times(ring, block), 2U) << block;
    }
    EXPECT_EQ(times(ring, 0), 1U) << "it is read at both ends and by the last: it stays";
    EXPECT_EQ(times(ring, kBlocks - 2), 1U) << "the last layer is read again at once";
    EXPECT_EQ(times(ring, kBlocks - 1), 1U);
    const std::vector<Fetch> two = order_fetches(visits, kBlocks, 2);
    check(visits, two, 2);
    EXPECT_LE(two.size(), 2U * kBlocks);
}

TEST(FetchOrder, LeavesAVisitBetweenAFetchAndTheReadersOfItsSlot) {
    constexpr int kBlocks = 20;
    const std::vector<Visit> visits = visits_of_step(tied(kBlocks));
    for (const int slots : {2, 3, 5, 9}) {
        for (const Fetch& fetch : order_fetches(visits, kBlocks, slots)) {
            const bool is_at_the_end = fetch.before == kBlocks - 1 || fetch.before == kBlocks;
            if (!is_at_the_end && fetch.after >= 0) {  // two blocks are read at once there
                EXPECT_LT(fetch.after, fetch.before - 1) << slots << ' ' << fetch.block;
            }
        }
    }
}

TEST(FetchOrder, HoldsForAnyVisits) {
    std::uint64_t drawn = 0;
    const auto draw = [&drawn](int below) {
        return static_cast<int>(random_uniform(3, 1, drawn++) * below);
    };
    for (int round = 0; round < 400; ++round) {
        const int blocks = 1 + draw(12);
        std::vector<Visit> reads;
        std::size_t most = 1;
        for (int block = 0; block < blocks; ++block) {
            Visit visit{block};
            while (draw(3) == 0) {
                const int other = draw(blocks);
                if (std::ranges::count(visit, other) == 0) {
                    visit.push_back(other);
                }
            }
            most = std::max(most, visit.size());
            reads.push_back(visit);
        }
        const std::vector<Visit> visits = visits_of_step(reads);
        for (int slots = static_cast<int>(most); slots <= blocks + 1; ++slots) {
            const std::vector<Fetch> fetches = order_fetches(visits, blocks, slots);
            check(visits, fetches, slots);
            EXPECT_GE(fetches.size(), fewest(visits, static_cast<std::size_t>(slots)));
            if (slots >= blocks) {
                EXPECT_EQ(fetches.size(), static_cast<std::size_t>(blocks));
            }
        }
    }
}

TEST(FetchOrder, NeedsFewFetchesMoreThanTheFewest) {
    for (int blocks = 4; blocks < 40; blocks += 5) {
        const std::vector<Visit> visits = visits_of_step(tied(blocks));
        for (int slots = 3; slots < blocks; ++slots) {
            // One slot is being filled while the others are read.
            EXPECT_LE(order_fetches(visits, blocks, slots).size(),
                      fewest(visits, static_cast<std::size_t>(slots) - 1))
                << blocks << " blocks, " << slots << " slots";
        }
    }
}

TEST(FetchOrder, RefusesVisitsThatDoNotFit) {
    EXPECT_THROW(order_fetches({{0, 1, 2}}, 3, 2), ContractError);
}

}  // namespace
}  // namespace nearstep::feed

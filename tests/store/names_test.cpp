// Tests the names of files of state.
#include "store/names.hpp"

#include "support/test.hpp"

namespace nearstep::store {
namespace {

TEST(NamesTest, ReadBackAsTheyWereMade) {
    for (const int rank : {0, 7, 123456, std::numeric_limits<int>::max()}) {
        for (int set = 0; set < kSets; ++set) {
            const auto manifest = parse_manifest_name(manifest_name(rank, set));
            ASSERT_TRUE(manifest);
            EXPECT_EQ(manifest->rank, rank);
            EXPECT_EQ(manifest->set, set);
            const auto state = parse_state_file_name(state_file_name(rank, 3, set));
            ASSERT_TRUE(state);
            EXPECT_EQ(state->rank, rank);
            EXPECT_EQ(state->device, 3);
            EXPECT_EQ(state->set, set);
        }
    }
}

TEST(NamesTest, AreThoseOfState) {
    for (int set = 0; set < kSets; ++set) {
        for (const std::string& name :
             {manifest_name(7, set), state_file_name(7, 3, set), program_state_name(7, set, 0),
              program_state_name(7, set, 1)}) {
            EXPECT_TRUE(is_state_name(name)) << name;
        }
    }
    for (const char* name : {"", "summary.json", "rank-7", "rank-7.program-2", "rank--1.program-0",
                             "rank-07.program-0"}) {
        EXPECT_FALSE(is_state_name(name)) << name;
    }
}

TEST(NamesTest, AreNoOthers) {
    for (const std::string name :
         {"", "..", "rank-0.device-0.state/", "../rank-0.device-0.state", "/rank-0.device-0.state",
          "rank-00.device-0.state", "rank--1.device-0.state", "rank-0.device-0.set-2.state",
          "rank-0.device-2147483648.state", "rank-0.device-0.state.partial", "rank-0.state",
          "rank-+1.device-0.state", "rank-0.device-0.set-0.state", "rank-0.manifest"}) {
        EXPECT_FALSE(parse_state_file_name(name)) << name;
    }
    EXPECT_FALSE(parse_state_file_name(std::string("rank-0.device-0.state\0x", 23)));
    for (const std::string name : {"rank-00.manifest", "rank-0.manifest.partial", "rank-.manifest",
                                   "../rank-0.manifest", "rank-0.set-0.manifest"}) {
        EXPECT_FALSE(parse_manifest_name(name)) << name;
    }
}

}  // namespace
}  // namespace nearstep::store

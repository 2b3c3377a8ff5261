// Tests the list of updates that tensors missed.
#include "store/missed_updates.hpp"

#include "support/test.hpp"

namespace nearstep::store {
namespace {

TEST(MissedUpdatesTest, AreReadAsTheyWereWritten) {
    const MissedUpdates missed = {0, 3, 3, 3, 0, 0, 1, 2};
    EXPECT_EQ(print_missed(missed), "1-3:3,6-6:1,7-7:2");
    for (const MissedUpdates& one : {MissedUpdates(), MissedUpdates{5}, missed}) {
        EXPECT_EQ(parse_missed(print_missed(one)), one);
    }
}

TEST(MissedUpdatesTest, RefuseOtherText) {
    for (const char* text :
         {"1", "1-2", "1-2:", "1-2:0", "2-1:3", "1-2:3,", "1-2:3,2-4:1", "-1-2:3", " 1-2:3",
          "1-2:3;4-5:1", "0-18446744073709551615:1", "0-99999999999:1"}) {
        EXPECT_FALSE(parse_missed(text)) << text;
    }
}

}  // namespace
}  // namespace nearstep::store

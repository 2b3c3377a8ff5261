#include "engine/checkpoint_folder.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

config::EngineSettings run_with(config::Durability durability) {
    config::EngineSettings run;
    run.csd.durability = durability;
    return run;
}

// 80 GB at 0.25 GB/s.
constexpr CheckpointTime kLong{.seconds = 320, .bytes = 8e10, .probed_bytes = 1.6e7};

TEST(Notice, IsComparedWithTheTimeOfACheckpoint) {
    EXPECT_THAT(describe_notice(run_with(config::Durability::checkpoint), kLong, 400),
                ElementsAre(AllOf(HasSubstr("about 320 s"), HasSubstr("80 GB"), HasSubstr("16 MB"),
                                  states("400 s"))));
    EXPECT_THAT(
        describe_notice(run_with(config::Durability::checkpoint), kLong, 120),
        ElementsAre(states("120 s"), AllOf(HasSubstr("warning"), HasSubstr("--signal=USR1@"))));
    EXPECT_THAT(describe_notice(run_with(config::Durability::checkpoint), kLong, 0),
                ElementsAre(HasSubstr("about 320 s")));
}

TEST(Notice, IsLongEnoughWhereEveryStepIsDurable) {
    EXPECT_THAT(describe_notice(run_with(config::Durability::step), {}, 120),
                ElementsAre(AllOf(HasSubstr("120 s"), Not(HasSubstr("warning")))));
    EXPECT_THAT(describe_notice(run_with(config::Durability::step), {}, 0), IsEmpty());
}

TEST(Notice, IsOfNoUseWhereNothingIsSaved) {
    EXPECT_THAT(describe_notice(run_with(config::Durability::none), {}, 120),
                ElementsAre(HasSubstr("warning")));
}

}  // namespace
}  // namespace nearstep::engine

// Tests the record of the runs that starts of one job began.
#include "engine/restart/job_record.hpp"

#include "support/test.hpp"

namespace nearstep::engine {
namespace {

class JobRecord : public testing::Test {
protected:
    JobRecord() {
        environment_.set("XDG_STATE_HOME", home_.path());
        environment_.set("SLURM_CLUSTER_NAME", "rack");
        begin("7", "");
    }
    void begin(const std::string& job, const std::string& restarts) {
        environment_.set("SLURM_JOB_ID", job);
        environment_.set("SLURM_RESTART_COUNT", restarts);
    }
    std::string record() const { return home_.file("nearstep/slurm-rack-7"); }

    ScratchFolder home_;
    Environment environment_;
};

TEST_F(JobRecord, TellsWhatAnEarlierStartOfTheJobBegan) {
    EXPECT_FALSE(runs_of_job("/one").may_have_begun);
    note_begun("/one", "00000000000000aa");
    note_begun("/one", "00000000000000aa");
    EXPECT_EQ(bytes_of(record()).size(), 34);
    EXPECT_FALSE(runs_of_job("/one").may_have_begun);  // in the same start
    begin("7", "1");
    EXPECT_TRUE(runs_of_job("/one").may_have_begun);
    EXPECT_TRUE(runs_of_job("/two/../one").may_have_begun);
    EXPECT_FALSE(runs_of_job("/two")
                     .may_have_begun);  // the job's second run, which had its turn never before
    note_begun("/two", "00000000000000bb");
    begin("7", "2");
    EXPECT_TRUE(runs_of_job("/two").may_have_begun);
    note_begun("/one", "00000000000000cc");  // a restart may begin another line
    EXPECT_THAT(runs_of_job("/one").ids,
                testing::ElementsAre("00000000000000aa", "00000000000000cc"));
    EXPECT_THAT(runs_of_job("/two").ids, testing::ElementsAre("00000000000000bb"));
    begin("8", "");
    EXPECT_FALSE(runs_of_job("/one").may_have_begun);
}

TEST_F(JobRecord, TakesNothingForKnownWithoutARecordOfTheFirstStart) {
    begin("7", "1");
    EXPECT_TRUE(runs_of_job("/one").may_have_begun);
    note_begun("/two",
               "00000000000000bb");  // makes no record, which would lack what the first start began
    EXPECT_FALSE(std::filesystem::exists(record()));
    EXPECT_TRUE(runs_of_job("/one").may_have_begun);
    begin("", "1");
    EXPECT_TRUE(runs_of_job("/one").may_have_begun);
    begin("../7", "1");
    EXPECT_TRUE(runs_of_job("/one").may_have_begun);
    begin("", "");
    EXPECT_FALSE(runs_of_job("/one").may_have_begun);
    note_begun("/one", "00000000000000aa");
    EXPECT_TRUE(std::filesystem::is_empty(home_.path()));
}

TEST_F(JobRecord, OfVersion020NamesNoRuns) {
    note_begun("/one", "00000000000000aa");
    std::filesystem::resize_file(record(), 16);
    begin("7", "1");
    EXPECT_TRUE(runs_of_job("/one").may_have_begun);
    EXPECT_THAT(runs_of_job("/one").ids, testing::IsEmpty());
}

TEST_F(JobRecord, FollowsNoLink) {
    std::filesystem::create_directories(home_.file("nearstep"));
    home_.write("thesis.tex", "a thesis");
    std::filesystem::create_symlink(home_.file("thesis.tex"), record());
    note_begun("/one", "00000000000000aa");
    EXPECT_EQ(bytes_of(home_.file("thesis.tex")), "a thesis");
}

}  // namespace
}  // namespace nearstep::engine

// Tests that what a client keeps beside the state comes back with its own step and to its own rank,
// or the step does not count.
#include "engine/run_fixture.hpp"
#include "store/names.hpp"

#include <functional>

namespace nearstep::engine {
namespace {

constexpr std::size_t kElemsOfTwoTiles = 2 * shard::kTileElems;

std::string program_content(int rank, std::int64_t step) {
    return step == 0 ? "" : text("what rank ", rank, " has at step ", step);
}

class KeptProgram : public testing::Test {
protected:
    using Opened = std::unique_ptr<engine::Run>;

    Opened open(StartRequest::Kind kind,
                const EngineOptions& options = {.program = ProgramUse::needed},
                const std::string& from = "") {
        Opened run = std::make_unique<engine::Run>(
            engine::Run::open(world_, settings_, layout_, {.kind = kind, .path = from},
                              {.model = "two tiles", .steps = 100}, options));
        run->begin(each_by([](std::size_t at) { return static_cast<float>(at % 7); }));
        return run;
    }

    void step(engine::Run& engine) const {
        engine.begin_backward({.groups = {{.optimizer = arith::Optimizer::sgd, .rate = 0.5}}});
        std::ranges::fill(engine.gradient_space(0), 1.0F);
        engine.put_gradient(0);
        engine.end_pass();
        engine.end_gradients();
        engine.update();
        engine.finish();
        const std::string content = program_content(world_.rank(), engine.steps_done());
        engine.keep_program(engine.steps_done(), std::as_bytes(std::span(content)));
        engine.commit();
    }

    static std::string kept_by(const Opened& run) {
        const auto kept = run->kept_program();
        return {reinterpret_cast<const char*>(kept.data()), kept.size()};  // NOLINT
    }

    // The file of the last rank, which alone changes some.
    std::string file(int place, int rank = -1) const {
        return text(settings_.csd.path[0], "/",
                    store::program_state_name(rank < 0 ? last_ : rank, 0, place));
    }
    void on_last(const std::function<void()>& work) const {
        if (world_.rank() == last_) {
            work();
        }
        world_.barrier();
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(100));
    int last_ = world_.size() - 1;
    Layout layout_ = layout_of_blocks({kElemsOfTwoTiles}, Dtype::fp32);
    config::EngineSettings settings_ = settings_in(new_folder(world_, "program"), 1);
};

TEST_F(KeptProgram, ComesBackWithItsStepWhateverFails) {
    if (world_.size() > 1) {
        GTEST_SKIP() << "the other ranks would wait for the one that fails";
    }
    for (const char* phase : {"before_flush", "before_rename", "after_rename"}) {
        for (int count = 4; count <= 9; ++count) {
            SCOPED_TRACE(text(phase, " ", count));
            settings_ = settings_in(new_folder(world_, "program"), 1);
            std::int64_t committed = 0;
            try {
                const Opened run =
                    open(StartRequest::Kind::fresh,
                         {.program = ProgramUse::needed,
                          .fault_plan = text("phase=", phase, " action=fail count=", count)});
                for (;;) {
                    step(*run);
                    committed = run->steps_done();
                    ASSERT_LT(committed, 9);
                }
            } catch (const IoError&) {
            }
            const Opened run = open(StartRequest::Kind::resume_if_any);
            EXPECT_GE(run->steps_done(), committed);
            EXPECT_EQ(kept_by(run), program_content(0, run->steps_done()));
        }
    }
}

TEST_F(KeptProgram, ThatIsDamagedSendsAllRanksToTheStepBefore) {
    const auto begin = [&] {
        world_.barrier();
        settings_ = settings_in(new_folder(world_, "program"), 1);
        const Opened run = open(StartRequest::Kind::fresh);
        for (int i = 0; i < 3; ++i) {
            step(*run);
        }
    };
    // The file of step 3 is that of step 1 anew.
    const std::string newest = file(0);
    const std::vector<std::function<void()>> harms = {
        [&] { fs::remove(newest); },
        [&] { fs::resize_file(newest, fs::file_size(newest) - 1); },
        [&] { fs::resize_file(newest, 0); },
        [&] {
            std::string bytes = bytes_of(newest);
            bytes.back() ^= 1;
            put_bytes(newest, bytes);
        },
        [&] { fs::copy_file(file(1), newest, fs::copy_options::overwrite_existing); },
        [&] {
            const std::string content = program_content(last_, 3);
            store::write_program_state(newest, "another run", 3, std::as_bytes(std::span(content)));
        },
        [&] {
            if (last_ == 0) {
                fs::remove(newest);
            } else {
                fs::copy_file(file(0, 0), newest, fs::copy_options::overwrite_existing);
            }
        }};
    for (std::size_t i = 0; i < harms.size(); ++i) {
        SCOPED_TRACE(text("harm ", i));
        begin();
        on_last(harms[i]);
        Opened run = open(StartRequest::Kind::resume);
        EXPECT_EQ(run->steps_done(), 2);
        EXPECT_EQ(kept_by(run), program_content(world_.rank(), 2));
        step(*run);
        run.reset();
        run = open(StartRequest::Kind::resume);
        EXPECT_EQ(run->steps_done(), 3);
        EXPECT_EQ(kept_by(run), program_content(world_.rank(), 3));
    }
    on_last([&] {
        fs::remove(file(0));
        fs::remove(file(1));
    });
    EXPECT_THAT(message_of<ConfigError>([&] { open(StartRequest::Kind::resume); }),
                states("cannot be read", text("rank-", last_, ".program-*")));
    // A client that does not need it takes the step, and says so in the manifest from then on.
    Opened run = open(StartRequest::Kind::resume, {.program = ProgramUse::optional});
    EXPECT_EQ(run->steps_done(), 3);
    EXPECT_EQ(kept_by(run), world_.rank() == last_ ? "" : program_content(world_.rank(), 3));
}

TEST_F(KeptProgram, OfACheckpointIsWhatItsIndexNames) {
    settings_.csd.durability = config::Durability::checkpoint;
    std::string path;
    {
        const Opened run = open(StartRequest::Kind::fresh);
        for (int i = 0; i < 2; ++i) {
            step(*run);
            const std::string content = program_content(world_.rank(), i + 1);
            path = run->save(settings_.checkpoint.path, std::as_bytes(std::span(content)));
        }
    }
    {
        const Opened run = open(StartRequest::Kind::resume);
        EXPECT_EQ(kept_by(run), program_content(world_.rank(), 2));
    }
    const auto count = std::ranges::count_if(
        fs::directory_iterator(settings_.checkpoint.path),
        [](const fs::directory_entry& entry) { return entry.path().extension() == ".program"; });
    EXPECT_EQ(count, world_.size()) << "those of the older checkpoint went with it";
    world_.barrier();
    const std::string kept =
        text(path.substr(0, path.rfind('.')), ".attempt-0.rank-0000", last_, ".program");
    for (const bool is_lost : {false, true}) {
        on_last([&] {
            std::string bytes = bytes_of(kept);
            bytes[bytes.size() / 2] ^= 1;
            put_bytes(kept, bytes);
            if (is_lost) {
                fs::remove(kept);
            }
        });
        EXPECT_THAT(message_of<ConfigError>([&] { open(StartRequest::Kind::resume); }),
                    states(kept));
        EXPECT_THAT(message_of<ConfigError>([&] {
                        open(StartRequest::Kind::from, {.program = ProgramUse::needed}, path);
                    }),
                    states("cannot be read", kept));
    }
}

}  // namespace
}  // namespace nearstep::engine

// Tensors that steps leave out keep their state and the number of their own updates, also across
// restarts, other layouts and checkpoints.
#include "engine/restart/start.hpp"
#include "engine/run_fixture.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

constexpr std::size_t kTensors = 4;
constexpr std::size_t kTensorElems = 40000;
constexpr double kRate = 0.01;
constexpr double kDecay = 0.1;

Layout four_tensors() {
    Layout layout = layout_of_blocks(std::vector<std::size_t>(kTensors, kTensorElems), Dtype::fp32);
    for (std::size_t i = 0; i < kTensors; ++i) {
        layout.tensors[i].group = i % 2;
    }
    return layout;
}

float drawn(std::uint64_t stream, std::uint64_t number) {
    return static_cast<float>(random_uniform(23, stream, number)) - 0.5F;
}

// Returns the tensors that a step leaves out. Tensor 1 begins late, and tensor 3 is used in every
// third step.
std::vector<std::size_t> skipped_in(std::int64_t step) {
    std::vector<std::size_t> skipped;
    if (step < 5) {
        skipped.push_back(1);
    }
    if (step % 3 != 1) {
        skipped.push_back(3);
    }
    return skipped;
}

// AdamW in double precision, which counts the steps of each tensor as PyTorch does.
struct Oracle {
    std::vector<double> masters, moments1, moments2;
    std::vector<int> updates = std::vector<int>(kTensors, 0);

    void step(const std::vector<std::size_t>& skipped, const std::vector<double>& gradient) {
        const Hyper hyper;
        for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
            if (std::ranges::find(skipped, tensor) != skipped.end()) {
                continue;
            }
            const int t = ++updates[tensor];
            for (std::size_t i = tensor * kTensorElems; i < (tensor + 1) * kTensorElems; ++i) {
                moments1[i] += (1 - hyper.beta1) * (gradient[i] - moments1[i]);
                moments2[i] += (1 - hyper.beta2) * (gradient[i] * gradient[i] - moments2[i]);
                const double mean = moments1[i] / (1 - std::pow(hyper.beta1, t));
                const double square = moments2[i] / (1 - std::pow(hyper.beta2, t));
                masters[i] -=
                    kRate * (kDecay * masters[i] + mean / (std::sqrt(square) + hyper.epsilon));
            }
        }
    }
};

StartRequest resuming() { return {.kind = StartRequest::Kind::resume}; }

StartRequest from(const std::string& checkpoint) {
    return {.kind = StartRequest::Kind::from, .path = checkpoint};
}

class SkippedTensors : public testing::Test {
protected:
    SkippedTensors() {
        folder_ = new_folder(world_, "skipped");
        for (std::size_t i = 0; i < layout_.elems; ++i) {
            oracle_.masters.push_back(drawn(0, i));
        }
        oracle_.moments1.resize(layout_.elems);
        oracle_.moments2.resize(layout_.elems);
    }

    Start find(const StartRequest& request, int devices) {
        run_.reset();
        return find_start(world_, settings_in(folder_, devices), layout_, request, "four", {});
    }

    // The start of one device per rank, with these folders of logs.
    Start find_with(const std::vector<std::string>& logs, const StartRequest& request) {
        run_.reset();
        config::EngineSettings settings = settings_in(folder_ + "/state", 1);
        settings.csd.log = logs;
        return find_start(world_, settings, layout_, request, "four", {});
    }

    // Begins anew or resumes, with this many devices per rank.
    void open(const StartRequest& request, int devices) { open(find(request, devices)); }

    void open(const Start& start) {
        run_.emplace(engine::Run::open(world_, start, layout_,
                                       Identity{.model = "four", .steps = 100}, EngineOptions{}));
        run_->begin(each_by([](std::size_t i) { return drawn(0, i); }));
    }

    // The gradients of a rank, from this stream of random numbers.
    void put_gradients(std::uint64_t stream) {
        for (std::size_t block = layout_.blocks.size(); block-- > 0;) {
            const std::span<float> space = run_->gradient_space(block);
            for (std::size_t i = 0; i < space.size(); ++i) {
                space[i] = drawn(stream, layout_.blocks[block].begin + i);
            }
            run_->put_gradient(block);
        }
        run_->end_pass();
    }

    // A step that does not take place.
    void give_up_step() {
        const std::int64_t before = run_->steps_done();
        const Hyper hyper{.rate = 100 * kRate, .decay = kDecay};
        run_->begin_backward({.groups = {hyper, hyper}, .skipped = {1}});
        put_gradients(static_cast<std::uint64_t>(1000 + world_.rank()));
        EXPECT_TRUE(run_->end_gradients({.is_given_up = true}).is_given_up);
        run_->update();
        run_->finish();
        EXPECT_EQ(run_->steps_done(), before);
    }

    // Sets some masters to values of the program's own.
    void change_masters() {
        const auto changed = [this](std::size_t i) { return i < layout_.elems && i % 3 == 0; };
        run_->change_masters([&](std::size_t first, std::span<float> masters) {
            for (std::size_t i = 0; i < masters.size(); ++i) {
                masters[i] = changed(first + i) ? drawn(77, first + i) : masters[i];
            }
        });
        for (std::size_t i = 0; i < layout_.elems; ++i) {
            oracle_.masters[i] = changed(i) ? drawn(77, i) : oracle_.masters[i];
        }
    }

    // When the engine learns which tensors have no gradient.
    enum class Known { at_begin, at_end };

    void take_steps(int steps, Known known = Known::at_begin) {
        for (int taken = 0; taken < steps; ++taken) {
            const std::int64_t step = run_->steps_done();
            const Hyper hyper{.rate = kRate, .decay = kDecay};
            run_->begin_backward({.groups = {hyper, hyper},
                                  .skipped = known == Known::at_begin
                                                 ? skipped_in(step)
                                                 : std::vector<std::size_t>{}});
            std::vector<double> sum(layout_.elems, 0);
            for (int rank = 0; rank < world_.size(); ++rank) {
                const auto stream = static_cast<std::uint64_t>(step * world_.size() + rank + 1);
                for (std::size_t i = 0; i < layout_.elems; ++i) {
                    sum[i] += drawn(stream, i);
                }
            }
            const auto stream =
                static_cast<std::uint64_t>(step * world_.size() + world_.rank() + 1);
            put_gradients(stream);
            run_->end_gradients({.skipped = skipped_in(step)});
            run_->update();
            run_->finish();
            run_->commit();
            oracle_.step(skipped_in(step), sum);
        }
    }

    void expect_masters() {
        run_->hold_parameters();
        std::vector<float> masters(layout_.elems);
        std::memcpy(masters.data(), run_->parameters().data(), layout_.elems * sizeof(float));
        double largest = 0;
        for (std::size_t i = 0; i < layout_.elems; ++i) {
            largest = std::max(largest, std::abs(masters[i] - oracle_.masters[i]));
        }
        EXPECT_LT(largest, 1e-5) << "after " << run_->steps_done() << " steps";
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(100));
    Layout layout_ = four_tensors();
    std::string folder_;
    Oracle oracle_;
    std::optional<engine::Run> run_;
};

TEST_F(SkippedTensors, KeepTheNumberOfTheirUpdatesAcrossRestartsLayoutsAndCheckpoints) {
    open(StartRequest(), 1);
    take_steps(7);
    expect_masters();
    open(resuming(), 1);
    take_steps(4);
    expect_masters();
    open(resuming(), 2);  // reads the state of another layout
    take_steps(4);
    expect_masters();
    const std::string checkpoint = run_->save(folder_ + "/checkpoints");
    open(from(checkpoint), 1);
    EXPECT_EQ(run_->steps_done(), 15);
    take_steps(4);
    expect_masters();
}

TEST_F(SkippedTensors, MayBeKnownWhenAllGradientsAreThere) {
    open(StartRequest(), 2);
    take_steps(9, Known::at_end);
    expect_masters();
    EXPECT_EQ(run_->updates(),
              std::vector<std::int64_t>(oracle_.updates.begin(), oracle_.updates.end()));
    open(resuming(), 1);
    take_steps(4, Known::at_end);
    expect_masters();
}

TEST_F(SkippedTensors, AreNotTouchedByStepsThatAreGivenUp) {
    open(StartRequest(), 2);
    give_up_step();
    for (int i = 0; i < 5; ++i) {
        take_steps(1);
        give_up_step();
        give_up_step();
        expect_masters();
    }
    open(resuming(), 1);
    EXPECT_EQ(run_->steps_done(), 5);
    expect_masters();
}

// Values that a program writes into parameters are durable, and Adam goes on as if they had been
// there.
TEST_F(SkippedTensors, KeepTheirMomentsWhenMastersChange) {
    open(StartRequest(), 2);
    change_masters();
    expect_masters();
    take_steps(5);
    change_masters();
    take_steps(2);
    change_masters();
    expect_masters();
    open(resuming(), 2);
    EXPECT_EQ(run_->steps_done(), 7);
    expect_masters();
    EXPECT_EQ(run_->updates(),
              std::vector<std::int64_t>(oracle_.updates.begin(), oracle_.updates.end()));
    take_steps(3);
    open(resuming(), 1);
    take_steps(2, Known::at_end);
    expect_masters();
    run_->see_state({0, layout_.elems}, [&](std::size_t first, std::span<const float> masters,
                                            std::span<const float> moments1,
                                            std::span<const float> /*moments2*/) {
        for (std::size_t i = 0; i < masters.size() && first + i < layout_.elems; ++i) {
            EXPECT_NEAR(masters[i], oracle_.masters[first + i], 1e-5);
            EXPECT_NEAR(moments1[i], oracle_.moments1[first + i], 1e-5);
        }
    });
}

// A value in the last tensor, and one that only 16 bits cannot hold.
TEST_F(SkippedTensors, AndOthersAreNamedIfTheirStartValuesAreNotFinite) {
    layout_.dtype = Dtype::fp16;
    const std::size_t last = layout_.tensors.back().offset;
    const auto begin = [&](float value, std::size_t count) {
        run_.emplace(engine::Run::open(world_, find(StartRequest(), 2), layout_,
                                       Identity{.model = "four", .steps = 100}, EngineOptions{}));
        run_->begin(each_by([&](std::size_t i) {
            return i >= last + 7 && i < last + 7 + count ? value : drawn(0, i);
        }));
    };
    for (const float value : {std::nanf(""), -HUGE_VALF, 65520.0F}) {
        try {
            begin(value, 3);
            ADD_FAILURE() << value << " is refused";
        } catch (const ConfigError& refusal) {
            const std::string said = refusal.what();
            EXPECT_NE(said.find(layout_.tensors.back().name + " have 3 numbers"), said.npos)
                << said;
        }
        run_.reset();
        EXPECT_FALSE(fs::exists(folder_ + "/state")) << "what has no step leaves no files";
    }
    begin(65504.0F, 3);
    EXPECT_EQ(run_->steps_done(), 0);
}

// Another job went on between this job's search and its locks.
TEST_F(SkippedTensors, GoOnFromNoDecisionThatIsOlderThanTheState) {
    open(StartRequest(), 1);
    take_steps(2);
    const Start same_layout = find(resuming(), 1);
    const Start other_layout = find(resuming(), 2);
    open(resuming(), 1);
    take_steps(1);
    run_.reset();
    EXPECT_THROW(open(same_layout), IoError);
    run_.reset();
    EXPECT_THROW(open(other_layout), IoError);
    open(resuming(), 1);
    EXPECT_EQ(run_->steps_done(), 3);
    expect_masters();
}

// A run with another csd.path filled the same logs between this run's search and its locks.
TEST_F(SkippedTensors, LeaveTheLogsOfAnotherRunAsTheyAre) {
    const auto find_in = [&](const std::string& path, const StartRequest& request) {
        run_.reset();
        config::EngineSettings settings = settings_in(path, 1);
        settings.csd.log = {folder_ + "/log"};
        return find_start(world_, settings, layout_, request, "four", {});
    };
    const std::string own = folder_ + "/own";
    const std::string other = folder_ + "/other";
    open(find_in(other, StartRequest()));  // and is killed before its first step
    const Start anew = find_in(folder_ + "/third", StartRequest());
    const Start in_place = find_in(other, resuming());
    open(find_in(own, StartRequest()));
    take_steps(2);
    for (const Start* start : {&anew, &in_place}) {
        run_.reset();
        EXPECT_THROW(open(*start), ConfigError);
    }
    run_.reset();
    EXPECT_FALSE(fs::exists(folder_ + "/third")) << "a start that is refused leaves no files";
    EXPECT_THROW(find_in(other, resuming()), ConfigError);
    open(find_in(own, resuming()));
    EXPECT_EQ(run_->steps_done(), 2);
    expect_masters();
}

TEST_F(SkippedTensors, GoOnWithLogsInAnyOfTheFolders) {
    open(find_with({folder_ + "/log"}, StartRequest()));
    take_steps(2);
    open(find_with({folder_ + "/new", folder_ + "/log"}, resuming()));
    EXPECT_EQ(run_->steps_done(), 2);
    take_steps(1);
    EXPECT_FALSE(fs::exists(folder_ + "/new"));
    open(find_with({folder_ + "/log"}, resuming()));
    EXPECT_EQ(run_->steps_done(), 3);
    expect_masters();
}

// Changed masters are all stored, so that no update is needed from the old logs.
TEST_F(SkippedTensors, GoOnWithNewLogsWhereTheOldOnesAreNotNeeded) {
    const std::string log = folder_ + "/log";
    const std::string other = folder_ + "/new";
    open(find_with({log}, StartRequest()));
    take_steps(2);
    EXPECT_THROW(open(find_with({other}, resuming())), ConfigError);
    EXPECT_FALSE(fs::exists(other)) << "a start that is refused leaves no files";
    open(find_with({log}, resuming()));
    change_masters();
    run_.reset();
    if (world_.rank() == 0) {
        put_bytes(other, "a file where a folder would be");
    }
    world_.barrier();
    EXPECT_THROW(open(find_with({other}, resuming())), ConfigError);
    world_.barrier();
    if (world_.rank() == 0) {
        fs::remove(other);
    }
    world_.barrier();
    open(find_with({other}, resuming()));
    EXPECT_EQ(run_->steps_done(), 2);
    take_steps(2);
    open(find_with({other}, resuming()));
    EXPECT_EQ(run_->steps_done(), 4);
    expect_masters();
    EXPECT_TRUE(fs::exists(log)) << "the old logs stay";
}

}  // namespace
}  // namespace nearstep::engine

// State that a restart moves to other devices and other subgroups: its bits, other formats, damage.
#include "csd/state_format.hpp"
#include "engine/run_fixture.hpp"
#include "store/subgroup_header.hpp"
#include "support/test.hpp"

#include <bit>

namespace nearstep::engine {
namespace {

using csd::StateFormat;
using shard::kTileElems;

constexpr std::size_t kMovedElems = 11 * kTileElems + 1000;
constexpr std::size_t kMovedPadded = 12 * kTileElems;

// Masters and moments of all parameters.
struct AllState {
    std::vector<float> masters = std::vector<float>(kMovedPadded);
    std::vector<float> moments1 = masters;
    std::vector<float> moments2 = masters;

    csd::StateArrays arrays() { return {masters, moments1, moments2}; }
    friend bool operator==(const AllState&, const AllState&) = default;
};

// How the state lies.
struct StoredWay {
    int devices = 1;
    std::size_t subgroup_tiles = 1;
    StateFormat format = StateFormat::compact;
};

float drawn_for(std::uint64_t stream, std::size_t place) {
    return static_cast<float>(random_uniform(31, stream, place)) - 0.5F;
}

class OtherLayoutOf : public testing::TestWithParam<std::string> {
protected:
    OtherLayoutOf() {
        if (world_.rank() == 0) {
            scratch_.emplace(GetParam());
        }
        folder_ = world_.broadcast(scratch_ ? scratch_->path() : "", 0);
    }
    ~OtherLayoutOf() override {
        run_.reset();
        world_.barrier();  // before the folder goes
    }

    BeginReport open(const StoredWay& way, StartRequest::Kind kind) {
        run_.reset();
        config::EngineSettings settings = settings_in(folder_, way.devices);
        settings.csd.subgroup_tiles = way.subgroup_tiles;
        settings.csd.state = way.format;
        run_.emplace(engine::Run::open(world_, settings, layout_, {.kind = kind},
                                       Identity{.model = "one block", .steps = 100}, {}));
        return run_->begin(each_by([](std::size_t i) { return drawn_for(0, i); }));
    }
    BeginReport resume(const StoredWay& way) { return open(way, StartRequest::Kind::resume); }

    void take_steps(int steps) {
        for (int step = 0; step < steps; ++step) {
            run_->begin_backward({.groups = {Hyper{.rate = 0.1}}});
            const std::span<float> space = run_->gradient_space(0);
            for (std::size_t i = 0; i < space.size(); ++i) {
                space[i] = drawn_for(static_cast<std::uint64_t>(run_->steps_done() + 1), i);
            }
            run_->put_gradient(0);
            run_->end_pass();
            run_->end_gradients();
            run_->update();
            run_->finish();
            run_->commit();
        }
    }

    // Returns what all ranks have together.
    AllState values() {
        std::vector<std::uint64_t> bits(3 * kMovedPadded);
        run_->see_state({0, kMovedPadded}, [&](std::size_t first, const auto&... arrays) {
            std::size_t at = first;
            for (const std::span<const float> array : {arrays...}) {
                std::ranges::transform(
                    array, bits.begin() + static_cast<std::ptrdiff_t>(at),
                    [](float value) { return std::bit_cast<std::uint32_t>(value); });
                at += kMovedPadded;
            }
        });
        world_.sum(std::span(bits));
        AllState all;
        std::size_t at = 0;
        for (std::vector<float>* array : {&all.masters, &all.moments1, &all.moments2}) {
            for (float& value : *array) {
                value = std::bit_cast<float>(static_cast<std::uint32_t>(bits[at++]));
            }
        }
        return all;
    }

    std::vector<std::byte> parameters() {
        run_->hold_parameters();
        const auto all = run_->parameters().first(kMovedElems * sizeof(std::uint16_t));
        return {all.begin(), all.end()};
    }

    // Flips a bit of the payload of each version in a file of the last rank.
    void damage(const std::string& file) {
        run_.reset();
        world_.barrier();
        if (world_.rank() == 0) {
            const std::string bytes = bytes_of(file);
            for (std::size_t at = 0; at + store::kHeaderBytes <= bytes.size(); at += 4096) {
                if (std::string_view(bytes).substr(at, 8) == store::kHeaderMagic) {
                    flip_bit(file, static_cast<std::int64_t>(at + store::kHeaderBytes + 99));
                }
            }
        }
        world_.barrier();
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(60));
    Layout layout_ = layout_of_blocks({kMovedElems}, Dtype::bf16);
    std::optional<ScratchFolder> scratch_;  // of rank 0
    std::string folder_;
    std::optional<engine::Run> run_;
};

TEST_P(OtherLayoutOf, KeepsTheBitsOfMastersAndMoments) {
    for (const StateFormat format : {StateFormat::fp32, StateFormat::compact}) {
        open({.devices = 4, .subgroup_tiles = 2, .format = format}, StartRequest::Kind::fresh);
        take_steps(3);
        const AllState before = values();
        const std::vector<std::byte> vector = parameters();
        for (const StoredWay& way :
             {StoredWay{2, 3, format}, StoredWay{3, 1, format}, StoredWay{1, 16, format}}) {
            EXPECT_THAT(resume(way).lines, testing::Contains(testing::HasSubstr("another layout")));
            EXPECT_TRUE(values() == before) << name_of(format) << ", devices " << way.devices;
            EXPECT_TRUE(parameters() == vector) << name_of(format) << ", devices " << way.devices;
        }
        take_steps(1);
        const AllState moved = values();
        open({.devices = 4, .subgroup_tiles = 2, .format = format}, StartRequest::Kind::fresh);
        take_steps(4);
        EXPECT_TRUE(values() == moved) << name_of(format) << ": a step after all moves";
    }
}

TEST_P(OtherLayoutOf, RoundsToANarrowerFormatAndWidensExactly) {
    open({.devices = 2, .subgroup_tiles = 2, .format = StateFormat::fp32},
         StartRequest::Kind::fresh);
    take_steps(3);
    AllState expected = values();
    memory::Buffer payload(csd::state_bytes(StateFormat::compact, kMovedPadded / kTileElems));
    csd::narrow(StateFormat::compact, expected.arrays(), payload.span());
    csd::widen(StateFormat::compact, payload.span(), expected.arrays());
    for (const StateFormat format : {StateFormat::compact, StateFormat::q8, StateFormat::fp32}) {
        resume({.devices = 3, .subgroup_tiles = 1, .format = format});
        EXPECT_TRUE(values() == expected) << name_of(format);
    }
}

TEST_P(OtherLayoutOf, IsRefusedIfItIsDamaged) {
    open({.devices = 2, .subgroup_tiles = 2}, StartRequest::Kind::fresh);
    take_steps(2);
    const AllState before = values();
    const std::string file = text(folder_, "/state/rank-", world_.size() - 1, ".device-1.state");
    damage(file);
    const auto left = [&] {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(folder_ + "/state")) {
            names.push_back(entry.path().filename());
        }
        std::ranges::sort(names);
        return names;
    };
    const std::vector<std::string> files = left();
    EXPECT_THAT(message_of<ConfigError>([&] { resume({.devices = 3}); }), states(file, "data"));
    EXPECT_EQ(left(), files) << "the old state stays, and nothing beside it";
    damage(file);  // back again
    resume({.devices = 3});
    EXPECT_TRUE(values() == before);
}

// Memory, where state is written to its place, and a drive.
INSTANTIATE_TEST_SUITE_P(Folders, OtherLayoutOf,
                         testing::Values("/dev/shm/", std::string(test::kBuildFolder) + "/"));

}  // namespace
}  // namespace nearstep::engine

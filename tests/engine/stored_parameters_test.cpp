// Parameters that a client reads from the state are those that another run has in its vector.
#include "base/units.hpp"
#include "csd/device.hpp"
#include "engine/run_fixture.hpp"
#include "memory/buffer.hpp"
#include "store/subgroup_header.hpp"
#include "support/test.hpp"

namespace nearstep::engine {
namespace {

constexpr std::size_t kStoredBlocks = 5;
constexpr std::size_t kStoredBlockElems = 5 * 65536 + 1000;  // blocks share tiles
constexpr std::size_t kReadPage = csd::Device::kReadElems;

float stored_value(std::uint64_t stream, std::uint64_t number) {
    return static_cast<float>(random_uniform(29, stream, number)) - 0.5F;
}

Layout stored_blocks(Dtype dtype) {
    return layout_of_blocks(std::vector<std::size_t>(kStoredBlocks, kStoredBlockElems), dtype);
}

// Where the state that is read lies: in memory once, or there with logs of its updates on a drive.
enum class StateHome { drive, memory, memory_with_logs };

class StoredParameters
    : public testing::TestWithParam<std::tuple<Dtype, arith::StateFormat, std::size_t, StateHome>> {
protected:
    StoredParameters() {
        remove_folder();
        for (const ParameterHome home : {ParameterHome::vector, ParameterHome::state}) {
            open(home);
        }
    }

    ~StoredParameters() override {
        held_.reset();
        stored_.reset();
        remove_folder();
    }

    void remove_folder() const { std::filesystem::remove_all(folder_); }

    void open(ParameterHome home) {
        const auto [dtype, state, tiles, where] = GetParam();
        config::EngineSettings settings =
            settings_in(folder_ + (home == ParameterHome::state ? "/in-state" : "/in-vector"));
        settings.csd.subgroup_tiles = tiles;
        settings.csd.state = state;
        if (home == ParameterHome::state && where == StateHome::memory_with_logs) {
            settings.csd.log = {folder_ + "/log"};
        }
        std::optional<engine::Run>& run = home == ParameterHome::state ? stored_ : held_;
        run.emplace(engine::Run::open(
            world_, settings, layout_, {.kind = StartRequest::Kind::resume_if_any},
            Identity{.model = "blocks", .steps = 100}, {.parameters = home}));
        run->begin(each_by([](std::size_t i) { return stored_value(0, i); }));
    }

    // Writes to all memory that the run lends until this block is put. Returns its bytes.
    static std::size_t use_lent_memory(engine::Run& engine, std::size_t block) {
        const std::vector<std::vector<std::size_t>> ends = engine.lent_ends();
        const std::vector<std::span<std::byte>> lent = engine.lent_memory();
        EXPECT_EQ(lent.size(), ends.size());
        std::size_t used = 0;
        for (std::size_t i = 0; i < lent.size(); ++i) {
            EXPECT_EQ(ends[i].back(), lent[i].size());
            std::ranges::fill(lent[i].first(ends[i][block]), std::byte{0x3f});
            used += ends[i][block];
        }
        return used;
    }

    void put_gradients(engine::Run& engine, const Layout& layout, std::uint64_t stream) {
        for (std::size_t block = kStoredBlocks; block-- > 0;) {
            if (&engine == &*stored_) {
                use_lent_memory(engine, block);
            }
            const std::span<float> space = engine.gradient_space(block);
            for (std::size_t i = 0; i < space.size(); ++i) {
                space[i] = stored_value(stream, layout.blocks[block].begin + i);
            }
            engine.put_gradient(block);
        }
        engine.end_pass();
    }

    // Compares each block as soon as it was awaited.
    void expect_same_blocks() {
        for (std::size_t block = 0; block < kStoredBlocks; ++block) {
            for (engine::Run* run : {&*held_, &*stored_}) {
                run->await_parameters(block, {&layout_.blocks[block], 1}, {});
            }
            const shard::ElementRange range = layout_.blocks[block];
            const shard::ElementRange pages{range.begin / kReadPage * kReadPage,
                                            round_up(range.end, kReadPage)};
            const std::size_t bytes = size_bytes(layout_.dtype);
            memory::Buffer read((pages.end - pages.begin) * bytes);
            stored_->read_parameters(pages, read.span());
            const auto expected =
                held_->parameters().subspan(range.begin * bytes, (range.end - range.begin) * bytes);
            const auto found =
                read.span().subspan((range.begin - pages.begin) * bytes, expected.size());
            EXPECT_TRUE(std::ranges::equal(found, expected)) << "block " << block;
        }
    }

    void step(bool is_given_up) {
        for (engine::Run* run : {&*held_, &*stored_}) {
            engine::Run& engine = *run;
            engine.begin_backward({.groups = {Hyper{.rate = 0.1}}});
            put_gradients(engine, layout_, static_cast<std::uint64_t>(engine.steps_done() + 1));
            engine.end_gradients({.is_given_up = is_given_up});
            engine.update();
            engine.begin_forward();
        }
        expect_same_blocks();
        for (engine::Run* run : {&*held_, &*stored_}) {
            run->end_pass();
            run->finish();
            run->commit();
        }
        expect_same_blocks();
    }

    // A bit of the first master of each extent.
    void flip_masters() const {
        for (const auto& entry : fs::directory_iterator(folder_ + "/in-state/state")) {
            const std::string bytes = bytes_of(entry.path());
            for (std::size_t at = 0; at < bytes.size(); at += store::kHeaderBytes) {
                if (std::string_view(bytes).substr(at).starts_with(store::kHeaderMagic)) {
                    flip_bit(entry.path(), static_cast<std::int64_t>(at + store::kHeaderBytes));
                }
            }
        }
    }

    const mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(60));
    const std::string folder_ =
        (std::get<3>(GetParam()) == StateHome::memory ? std::string("/dev/shm/nearstep-test")
                                                      : std::string(test::kBuildFolder)) +
        "/engine-stored-parameters";
    const Layout layout_ = stored_blocks(std::get<0>(GetParam()));
    std::optional<engine::Run> held_;
    std::optional<engine::Run> stored_;
};

TEST_P(StoredParameters, AreThoseOfTheVectorAfterStepsChangesAndRestarts) {
    expect_same_blocks();
    for (const bool is_given_up : {false, true, false, false}) {
        step(is_given_up);
    }
    for (engine::Run* run : {&*held_, &*stored_}) {
        run->change_masters([](std::size_t first, std::span<float> masters) {
            for (std::size_t i = 0; i < masters.size(); ++i) {
                masters[i] = (first + i) % 3 == 0 ? 0.25F : masters[i];
            }
        });
    }
    expect_same_blocks();
    step(false);
    EXPECT_EQ(held_->masters_digest(), stored_->masters_digest());
    EXPECT_EQ(stored_->vector_bytes(), 0U) << "nothing was written to the vector";
    const bool is_lent = use_lent_memory(*stored_, kStoredBlocks - 1) > 0;
    EXPECT_EQ(is_lent, std::get<3>(GetParam()) == StateHome::memory);
    stored_.reset();
    open(ParameterHome::state);
    EXPECT_EQ(stored_->steps_done(), 4);
    expect_same_blocks();
    step(false);
    if (std::get<3>(GetParam()) != StateHome::drive) {
        return;  // what the process keeps in memory is not verified
    }
    flip_masters();
    const shard::ElementRange page{0, kReadPage};
    memory::Buffer read(kReadPage * size_bytes(layout_.dtype));
    EXPECT_THAT(message_of<DamageError>([&] { stored_->read_parameters(page, read.span()); }),
                states("rank-0.device-0.state"));
}

INSTANTIATE_TEST_SUITE_P(
    , StoredParameters,
    testing::Values(
        std::tuple(Dtype::bf16, arith::StateFormat::compact, std::size_t{1}, StateHome::drive),
        std::tuple(Dtype::bf16, arith::StateFormat::fp32, std::size_t{4}, StateHome::drive),
        std::tuple(Dtype::fp32, arith::StateFormat::q8, std::size_t{16}, StateHome::drive),
        std::tuple(Dtype::bf16, arith::StateFormat::compact, std::size_t{1}, StateHome::memory),
        std::tuple(Dtype::fp32, arith::StateFormat::q8, std::size_t{4}, StateHome::memory),
        std::tuple(Dtype::bf16, arith::StateFormat::fp32, std::size_t{1},
                   StateHome::memory_with_logs)));

}  // namespace
}  // namespace nearstep::engine

// Compares the GPU's update of pinned state with the scalar engine's, bit for bit; skipped without
// a GPU.
#include "csd/gpu_engine.hpp"

#include "codec/sample_tiles.hpp"
#include "csd/device_fixture.hpp"
#include "csd/gpu_client.hpp"
#include "csd/gpu_tiles.hpp"
#include "csd/payload_memory.hpp"
#include "csd/update_engine_fixture.hpp"
#include "memory/buffer.hpp"
#include "support/test.hpp"

namespace nearstep::csd {
namespace {

constexpr std::size_t kFirstTile = 7;  // in the parameter vector

struct GpuCase {
    StateFormat state = StateFormat::compact;
    Optimizer optimizer = Optimizer::adamw;
    std::string codec = "q4";
    Dtype dtype = Dtype::bf16;
    std::size_t sources = 1;
    bool is_read_ahead = false;  // into the GPU's memory
};

std::ostream& operator<<(std::ostream& out, const GpuCase& c) {
    return out << name_of(c.state) << "_" << name_of(c.optimizer) << "_" << c.codec << "_"
               << nearstep::name_of(c.dtype) << "_" << c.sources
               << (c.is_read_ahead ? "_ahead" : "");
}

constexpr std::size_t kLane = 1;

// Until memory is pinned and, if it should be, the state is in the GPU's memory.
void wait_until_taken(GpuEngine& engine, std::span<const std::byte> parameters, bool is_read) {
    while (!engine.takes(kLane, parameters) || engine.was_read(kLane) != is_read) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// The state of several tiles, its gradients and its parameters, all in pinned memory.
class Scene {
public:
    explicit Scene(const GpuCase& wanted)
        : wanted_(wanted),
          codec_(codec::make_codec({.name = wanted.codec, .keep = 0.03, .dtype = wanted.dtype})),
          tiles_(codec::nasty_tiles().size()),
          payloads_(*codec_, codec_->payload_bytes(), tiles_, wanted.sources),
          state_(2 * state_bytes(wanted.state, tiles_)),
          parameters_(tiles_ * kTileElems * size_bytes(wanted.dtype)),
          pinned_(parameters_.span()) {
        scalars_ = test_scalars();
        scalars_.optimizer = wanted.optimizer;
        scalars_.random_key = 1234;
        scalars_.gradient_decay = 0.01F;
        put_gradients();
        std::vector<float> arrays[3];
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            const Samples start = random_samples(tile + 1);
            arrays[0].insert(arrays[0].end(), start.master.begin(), start.master.end());
            arrays[1].insert(arrays[1].end(), start.moment1.begin(), start.moment1.end());
            arrays[2].insert(arrays[2].end(), start.moment2.begin(), start.moment2.end());
        }
        narrow(wanted.state, {arrays[0], arrays[1], arrays[2]}, old());
    }

    void update_on_gpu() {
        GpuEngine engine({.lanes = 2,
                          .lanes_on_gpu = wanted_.is_read_ahead ? std::size_t{2} : 0,
                          .lane_bytes = old().size() + parameters_.size() + 4096});
        engine.pin({state_.span(), payloads_.span()});
        wait_until_taken(engine, parameters_.span(), false);
        EXPECT_EQ(engine.read(kLane, old()), wanted_.is_read_ahead);
        wait_until_taken(engine, parameters_.span(), wanted_.is_read_ahead);
        GpuTiles run;
        run.format = wanted_.state;
        run.old = state_of_tile(wanted_.state, old(), tiles_, 0);
        run.updated = state_of_tile(wanted_.state, updated(), tiles_, 0);
        run.payloads = payloads_.span().data();
        run.payload_stride = payloads_.stride();
        run.sources = static_cast<unsigned>(wanted_.sources);
        run.codec = *codec_->kernel_form();
        run.parameters = parameters_.span().data();
        run.parameter_dtype = wanted_.dtype;
        run.first_tile = kFirstTile;
        run.tiles = tiles_;
        EXPECT_TRUE(engine.begin(kLane, run, GroupMap(), scalars_).empty());
        EXPECT_TRUE(engine.has_updated(kLane));
        engine.deliver(kLane, [] {}).wait();
        engine.write(kLane, [] { return std::ptrdiff_t{0}; }).wait();
    }

    void update_on_host() {
        std::vector<float> gradient(kTileElems);
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            payloads_.sum(tile, 0, gradient);
            UpdateRun run;
            run.format = wanted_.state;
            run.state = state_of_tile(wanted_.state, updated(), tiles_, tile);
            run.old = state_of_tile(wanted_.state, old(), tiles_, tile);
            run.gradient = gradient.data();
            run.parameters =
                parameters_.span().data() + tile * kTileElems * size_bytes(wanted_.dtype);
            run.parameter_dtype = wanted_.dtype;
            run.key = arith::tile_key(scalars_.random_key, kFirstTile + tile);
            run.count = kTileElems;
            csd::update(engines().front(), scalars_, GroupMap(), tile * kTileElems, run);
        }
    }

    std::vector<std::vector<float>> results() {
        const std::size_t count = tiles_ * kTileElems;
        std::vector<std::vector<float>> arrays(4, std::vector<float>(count));
        widen(wanted_.state, updated(), {arrays[0], arrays[1], arrays[2]});
        convert_to_fp32(wanted_.dtype, parameters_.span().data(), arrays[3].data(), count);
        return arrays;
    }

    // The stored bytes of the first tile, whose values are all finite.
    std::vector<std::byte> first_tile() {
        std::vector<std::byte> bytes(state_bytes(wanted_.state, 1));
        copy_state(wanted_.state, state_of_tile(wanted_.state, updated(), tiles_, 0), kTileElems,
                   state_of_tile(wanted_.state, bytes, 1, 0));
        return bytes;
    }

private:
    std::span<std::byte> old() { return state_.span().first(state_.size() / 2); }
    std::span<std::byte> updated() { return state_.span().last(state_.size() / 2); }

    void put_gradients() {
        const std::vector<std::vector<float>> values = codec::nasty_tiles();
        std::vector<std::byte> payload(codec_->payload_bytes());
        for (std::size_t tile = 0; tile < tiles_; ++tile) {
            std::vector<std::vector<std::byte>> payloads;
            for (std::size_t source = 0; source < wanted_.sources; ++source) {
                codec_->encode(values[(tile + 3 * source) % tiles_], payload);
                payloads.push_back(payload);
            }
            const std::vector<std::span<const std::byte>> spans(payloads.begin(), payloads.end());
            payloads_.put(tile, spans);
        }
    }

    GpuCase wanted_;
    std::unique_ptr<codec::Codec> codec_;
    std::size_t tiles_;
    PayloadMemory payloads_;
    memory::Buffer state_;
    memory::Buffer parameters_;
    memory::PinnedRange pinned_;
    UpdateScalars scalars_;
};

class GpuEngines : public testing::TestWithParam<GpuCase> {
protected:
    void SetUp() override {
        if (memory::gpus() == 0) {
            GTEST_SKIP() << "there is no GPU here";
        }
    }
};

TEST_P(GpuEngines, GiveTheBitsOfTheScalarEngine) {
    Scene on_gpu(GetParam());
    Scene on_host(GetParam());
    on_gpu.update_on_gpu();
    on_host.update_on_host();
    const auto one = on_gpu.results();
    const auto other = on_host.results();
    for (std::size_t array = 0; array < one.size(); ++array) {
        EXPECT_TRUE(codec::same_bits(one[array], other[array])) << "array " << array;
    }
    EXPECT_EQ(on_gpu.first_tile(), on_host.first_tile());
}

std::vector<GpuCase> cases() {
    std::vector<GpuCase> all;
    for (const StateFormat state : kStateFormats) {
        for (const Optimizer optimizer : kOptimizers) {
            all.push_back({.state = state, .optimizer = optimizer});
        }
        for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
            all.push_back({.state = state, .codec = "dense", .dtype = dtype, .sources = 2});
        }
    }
    for (const std::string& codec : codec::codec_names()) {
        if (codec::make_codec({.name = codec})->kernel_form()) {
            all.push_back({.codec = codec, .sources = 4});
        }
    }
    all.push_back({.codec = "topk", .dtype = Dtype::fp16, .sources = 3});
    const std::size_t in_host_memory = all.size();
    for (std::size_t i = 0; i < in_host_memory; ++i) {
        all.push_back(all[i]);
        all.back().is_read_ahead = true;
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, GpuEngines, testing::ValuesIn(cases()),
                         testing::PrintToStringParamName());

constexpr std::size_t kLaneBytes = std::size_t{3} * kTileElems * 7;  // of three tiles

struct HelpCase {
    std::size_t lanes = 0;
    bool has_client = false;
    std::size_t spare = 0;
    Delivery delivery = Delivery::parameters;
};

class GpuDevices : public testing::TestWithParam<HelpCase> {};

// A device in memory with a GPU and one without, which take the same steps.
TEST_P(GpuDevices, LeaveBitsAsTheyAre) {
    if (memory::gpus() == 0) {
        GTEST_SKIP() << "there is no GPU here";
    }
    // The second subgroup has a tile that two groups share, and one of a skipped group.
    constexpr std::size_t kEdge = 3 * shard::kTileElems + 777;
    const std::array runs{GroupRun{kEdge, 0}, GroupRun{5 * shard::kTileElems, 1},
                          GroupRun{6 * shard::kTileElems, 2}, GroupRun{kParameters, 1}};
    StepScalars scalars(test_scalars());
    scalars.of_group[1].step_size = 3e-2F;
    scalars.is_skipped[2] = true;
    SmallDeviceSettings settings{.codec = "q4",
                                 .state = StateFormat::compact,
                                 .delivery = GetParam().delivery,
                                 .groups = GroupMap(runs),
                                 .parent = "/dev/shm"};
    HandledDevice on_host(settings);
    settings.gpu = 0;
    settings.gpu_read_ahead_bytes = GetParam().lanes * kLaneBytes;
    settings.spare = GetParam().spare;
    HandledDevice with_gpu(settings);
    std::optional<memory::PinnedRange> pinned;
    if (GetParam().delivery == Delivery::parameters) {
        pinned.emplace(std::span<const std::byte>(with_gpu.vector));
    }
    GpuClient client;
    std::uint64_t gpu_bytes = 0;
    // The first steps pin the memory meanwhile.
    int helped = 0;
    std::int64_t step = 0;
    for (; helped < 20; ++step) {
        ASSERT_LT(step, 5000) << "the GPU never helped";
        scalars.random_key = static_cast<std::uint64_t>(step);
        // Sometimes the client uses its parameters during the update, or has written them.
        const bool has_tensors = GetParam().has_client && step % 3 > 0;
        with_gpu.device->deliver_to(has_tensors ? client.tensors(on_host.vector, step % 3 == 2)
                                                : nullptr);
        on_host.put_gradients(step % 4);
        on_host.start(step, scalars);
        // Sometimes nothing is read ahead, or in vain.
        if (step % 5 > 0) {
            with_gpu.handler->read_ahead(
                step, step % 2 == 0 ? ReadAhead::from_first : ReadAhead::from_last);
        }
        if (step % 5 == 1) {
            with_gpu.handler->drop_read_ahead();
        }
        with_gpu.put_gradients(step % 4);
        with_gpu.start(step, scalars);
        on_host.handler->finish();
        with_gpu.handler->finish();
        ASSERT_EQ(on_host.states(step + 1), with_gpu.states(step + 1)) << "step " << step;
        ASSERT_EQ(on_host.vector, has_tensors ? client.completed(with_gpu.vector) : with_gpu.vector)
            << "step " << step;
        const std::uint64_t now = with_gpu.traffic.snapshot()[trace::Counter::gpu_state_write];
        helped += now > gpu_bytes ? 1 : 0;
        gpu_bytes = now;
    }
    // Two of the six tiles are not of one group that is updated.
    EXPECT_LE(gpu_bytes, 20 * state_bytes(StateFormat::compact, 64) / 16);
    EXPECT_EQ(client.has_any(), GetParam().has_client);
    if (GetParam().spare > 0) {  // a restart repeats on the host what the GPU would have done
        on_host.take_step(step, scalars);
        with_gpu.put_gradients(step);
        with_gpu.device->keep_update(step + 1, scalars);
        with_gpu.device->accept(step + 1);
        EXPECT_EQ(on_host.states(step + 1), with_gpu.states(step + 1));
    }
}

// The kernel and the copies to the host leave out parameters that are null.
TEST(GpuTilesTest, APartOfTilesWithoutParametersHasNone) {
    std::vector<std::byte> state(state_bytes(StateFormat::compact, 2));
    std::vector<std::byte> parameters(2 * kTileElems * size_bytes(Dtype::bf16));
    GpuTiles all;
    all.format = StateFormat::compact;
    all.old = state_of_tile(all.format, state, 2, 0);
    all.updated = all.old;
    all.payloads = state.data();
    all.tiles = 2;
    EXPECT_EQ(part_of(all, 1, 1).parameters, nullptr);
    all.parameters = parameters.data();
    EXPECT_EQ(part_of(all, 1, 1).parameters, parameters.data() + parameters.size() / 2);
}

INSTANTIATE_TEST_SUITE_P(
    LanesOnGpu, GpuDevices,
    testing::Values(HelpCase{0}, HelpCase{2}, HelpCase{5}, HelpCase{0, true}, HelpCase{2, true},
                    HelpCase{5, true}, HelpCase{0, false, 1}, HelpCase{2, true, 1},
                    HelpCase{5, true, 2}, HelpCase{0, false, 0, Delivery::none},
                    HelpCase{2, false, 0, Delivery::none}, HelpCase{0, false, 1, Delivery::none},
                    HelpCase{5, false, 2, Delivery::none}),
    [](const auto& of) {
        return std::to_string(of.param.lanes) +
               (of.param.delivery == Delivery::none ? "_in_state" : "") +
               (of.param.has_client ? "_to_a_client" : "") +
               (of.param.spare > 0 ? "_with_spare_places" : "");
    });

}  // namespace
}  // namespace nearstep::csd

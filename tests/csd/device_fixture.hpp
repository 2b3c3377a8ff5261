// A small emulated device with random state and gradients, for tests of devices and handlers.
#pragma once

#include "base/units.hpp"
#include "csd/cpu_device.hpp"
#include "csd/gpu_device.hpp"
#include "csd/state_layout.hpp"
#include "csd/transfer_handler.hpp"
#include "store/names.hpp"
#include "support/test.hpp"

#include <chrono>
#include <thread>

namespace nearstep::csd {

// Three subgroups of 2, 3 and 1 tiles. Other devices own the tiles between them; the last tile is
// padded.
inline std::vector<shard::Subgroup> small_subgroups() {
    return {{0, 0, {0, 2}}, {0, 1, {3, 6}}, {0, 2, {8, 9}}};
}

constexpr std::size_t kVectorTiles = 14;

// One of each tile.
inline std::vector<shard::Subgroup> many_subgroups() {
    std::vector<shard::Subgroup> subgroups;
    for (std::size_t tile = 0; tile < kVectorTiles; ++tile) {
        subgroups.push_back({0, tile, {tile, tile + 1}});
    }
    return subgroups;
}

// Memory for so many slots of a subgroup of one tile. Of 14 subgroups, 9 slots keep one, 12 keep
// four, and 15 keep all.
inline std::size_t room_for(std::size_t slots) { return slots * 2 * MiB; }

constexpr std::size_t kParameters = 8 * shard::kTileElems + 1234;
constexpr std::size_t kOwnElems = 6 * shard::kTileElems;  // of the device, including padding

struct State {
    explicit State(std::size_t tiles)
        : master(tiles * shard::kTileElems), moment1(master.size()), moment2(master.size()) {}

    StateArrays arrays() { return {master, moment1, moment2}; }
    friend bool operator==(const State&, const State&) = default;

    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;
};

struct SmallDeviceSettings {
    UpdatePlace place = UpdatePlace::near_storage;
    std::string codec = "dense";
    Dtype dtype = Dtype::bf16;
    int sources = 2;
    int slots = 3;
    std::size_t read_ahead_bytes = 0;
    int files = 1;
    store::IoKind io = store::IoKind::automatic;
    StateFormat state = StateFormat::fp32;
    Delivery delivery = Delivery::parameters;
    shaping::NodeLinks* links = nullptr;
    GroupMap groups = {};
    std::optional<int> gpu = std::nullopt;
    std::size_t gpu_read_ahead_bytes = 0;
    std::size_t spare = 0;  // places; with some the device keeps a log
    int logs = 1;           // several: state is cached, and stored in turns
    bool is_in_gpu_memory = false;
    std::string parent = testing::TempDir();  // of the device's folder
    std::vector<shard::Subgroup> subgroups = small_subgroups();
};

// The device, its files in a scratch folder, and its environment.
struct SmallDevice {
    explicit SmallDevice(const SmallDeviceSettings& wanted)
        : folder(wanted.parent), codec(codec::make_codec({.name = wanted.codec, .keep = 0.05})) {
        settings.name = "device under test";
        for (int i = 0; i < wanted.files; ++i) {
            settings.files.push_back(folder.file("state-" + std::to_string(i)));
        }
        settings.subgroups = wanted.subgroups;
        settings.parameters = kParameters;
        settings.parameter_dtype = wanted.dtype;
        settings.codec = codec.get();
        settings.sources = wanted.sources;
        settings.slots = wanted.slots;
        settings.read_ahead_bytes = wanted.read_ahead_bytes;
        settings.place = wanted.place;
        settings.executor = &executor;
        settings.io = wanted.io;
        settings.state = wanted.state;
        settings.delivery = wanted.delivery;
        settings.links = wanted.links;
        settings.groups = wanted.groups;
        settings.gpu = wanted.gpu;
        settings.gpu_read_ahead_bytes = wanted.gpu_read_ahead_bytes;
        settings.spare = wanted.spare;
        settings.keeps_log = wanted.spare > 0;
        for (int log = 0; settings.keeps_log && log < wanted.logs; ++log) {
            settings.logs.push_back(
                store::log_of_state(settings.files.front(), static_cast<std::size_t>(log)));
        }
        device = wanted.is_in_gpu_memory ? make_gpu_device(settings, traffic)
                                         : make_cpu_device(settings, traffic);
        device->reserve();
        vector.resize(kVectorTiles * shard::kTileElems * size_bytes(wanted.dtype));
    }

    // Stores generation 0: random masters, zero moments, zero padding.
    void initialise() {
        for (std::size_t s = 0; s < settings.subgroups.size(); ++s) {
            const shard::TileRange tiles = settings.subgroups[s].tiles;
            State state(tiles.size());
            for (std::size_t i = 0; i < state.master.size(); ++i) {
                const std::size_t parameter = tiles.begin * shard::kTileElems + i;
                state.master[i] = parameter < kParameters
                                      ? static_cast<float>(random_normal(1, 0, parameter))
                                      : 0.0F;
            }
            device->write_state(s, 0, state.arrays());
        }
    }

    // Puts random gradients for all tiles. Every device gets the same ones at the same step.
    void put_gradients(std::int64_t step) {
        for (const shard::Subgroup& subgroup : settings.subgroups) {
            for (std::size_t tile = subgroup.tiles.begin; tile < subgroup.tiles.end; ++tile) {
                put_gradient(tile, static_cast<std::uint64_t>(step));
            }
        }
        device->finish_gradients();
    }

    void put_gradient(std::size_t tile, std::uint64_t step) {
        std::vector<std::vector<std::byte>> payloads;
        std::vector<std::span<const std::byte>> spans;
        for (int source = 0; source < settings.sources; ++source) {
            std::vector<float> values(shard::kTileElems);
            for (std::size_t i = 0; i < values.size(); ++i) {
                const std::size_t parameter = tile * shard::kTileElems + i;
                const double value =
                    random_uniform(step + 10, static_cast<std::uint64_t>(source), parameter) - 0.5;
                values[i] = parameter < kParameters ? static_cast<float>(value) : 0.0F;
            }
            payloads.emplace_back(codec->payload_bytes());
            codec->encode(values, payloads.back());
        }
        spans.assign(payloads.begin(), payloads.end());
        std::vector<float> sum(shard::kTileElems);
        codec::decode_sum(*codec, spans, 0, sum);
        device->put_gradient(tile, spans, sum);
    }

    // Damages fp32 state that lies in one file.
    void flip_bit_of_state(std::size_t subgroup, std::int64_t generation) const {
        const StateLayout layout(settings.subgroups, StateFormat::fp32, false);
        flip_bit(settings.files[0], layout.extent_offset(subgroup, generation) + 4096 + 99);
    }

    std::vector<State> states(std::int64_t generation) {
        std::vector<State> all;
        for (std::size_t s = 0; s < settings.subgroups.size(); ++s) {
            all.emplace_back(settings.subgroups[s].tiles.size());
            device->read_state(s, generation, all.back().arrays());
        }
        return all;
    }

    ScratchFolder folder;
    std::unique_ptr<codec::Codec> codec;
    DeviceSettings settings;
    trace::Traffic traffic;
    Executor executor{3};
    std::unique_ptr<Device> device;
    std::vector<std::byte> vector;  // the parameter vector
};

inline UpdateScalars test_scalars() {
    UpdateScalars scalars;
    scalars.step_size = 1e-2F;
    scalars.decay_factor = 0.999F;
    scalars.root_scale = 1.2F;
    return scalars;
}

// The state and parameters after some steps.
struct Outcome {
    std::vector<State> states;
    std::vector<std::byte> vector;
    friend bool operator==(const Outcome&, const Outcome&) = default;
};

// An initialised device and its handler.
struct HandledDevice : SmallDevice {
    explicit HandledDevice(const SmallDeviceSettings& wanted = {},
                           HandlerKind kind = HandlerKind::overlapped)
        : SmallDevice(wanted), handler(std::make_unique<TransferHandler>(kind, *device)) {
        initialise();
    }

    void start(std::int64_t step, const StepScalars& scalars = test_scalars()) {
        if (settings.keeps_log) {
            device->keep_update(step + 1, scalars);
            device->accept(step + 1);
        }
        handler->start(scalars, step, vector);
    }
    // With gradients of this step.
    void take_step(std::int64_t step, const StepScalars& scalars = test_scalars()) {
        put_gradients(step);
        start(step, scalars);
        handler->finish();
        if (settings.logs.size() > 1) {
            device->flush().wait();
        }
    }
    void take_steps(int steps) {
        for (int step = 0; step < steps; ++step) {
            take_step(step);
        }
    }

    std::unique_ptr<TransferHandler> handler;
};

// Updates all subgroups in slot 0, from `generation` to the next one. Deliveries land in the
// vector, or in `rooms` if that is not empty.
inline void update_all(SmallDevice& small, std::int64_t generation,
                       const StepScalars& scalars = test_scalars(),
                       std::span<std::byte> rooms = {}) {
    Device& device = *small.device;
    for (std::size_t s = 0; s < device.subgroups().size(); ++s) {
        device.read(0, s, generation).wait();
        const std::span<std::byte> destination = rooms.empty() ? std::span(small.vector) : rooms;
        device.update(0, s, scalars, destination);
        device.deliver(0, s, destination, [] {}).wait();
        device.write(0, s, generation + 1).wait();
    }
}

// The first updates, each with its own gradients and random bits.
inline void update_steps(SmallDevice& small, int steps) {
    small.device->allocate_slot(0);
    for (int step = 0; step < steps; ++step) {
        UpdateScalars scalars = test_scalars();
        scalars.random_key = static_cast<std::uint64_t>(step);
        small.put_gradients(step);
        update_all(small, step, scalars);
    }
}

// Rethrows an error of the update.
inline void wait_parameters(TransferHandler& handler, std::size_t subgroup) {
    while (!handler.has_parameters(subgroup)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

}  // namespace nearstep::csd

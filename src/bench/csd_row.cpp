// Takes and verifies steps of a row's devices. Used by csd_bench.cpp.
#include "bench/csd_row.hpp"

#include "base/error.hpp"
#include "base/executor.hpp"
#include "base/random.hpp"
#include "csd/cpu_device.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "csd/stored_device.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

namespace nearstep::bench {

namespace {

using shard::kTileElems;

constexpr std::uint64_t kSeed = 20;
constexpr std::size_t kGradients = 7;  // distinct tiles of gradients, used in turn

shard::Partition partition_of(const CsdRowSettings& settings, const CsdScene& scene) {
    return shard::Partition(
        {.parameters = scene.parameters,
         .speeds = std::vector<double>(static_cast<std::size_t>(settings.devices), 1.0),
         .subgroup_tiles = scene.subgroup_tiles});
}

// The scalars do not affect a step's speed. These change every master.
csd::UpdateScalars scalars() {
    csd::UpdateScalars values;
    values.step_size = 1e-3F;
    values.decay_factor = 0.999F;
    values.root_scale = 1.2F;
    return values;
}

struct State {
    explicit State(std::size_t tiles)
        : master(tiles * kTileElems), moment1(master.size()), moment2(master.size()) {}

    csd::StateArrays arrays() { return {master, moment1, moment2}; }

    std::vector<float> master;
    std::vector<float> moment1;
    std::vector<float> moment2;
};

State start_state(shard::TileRange tiles) {
    State state(tiles.size());
    for (std::size_t i = 0; i < state.master.size(); ++i) {
        state.master[i] =
            static_cast<float>(random_uniform(kSeed, 0, tiles.begin * kTileElems + i) - 0.5);
    }
    return state;
}

std::vector<float> gradient_of(std::size_t tile) {
    std::vector<float> values(kTileElems);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(random_uniform(kSeed, 1 + tile % kGradients, i) - 0.5);
    }
    return values;
}

std::vector<std::byte> payload_of(std::size_t tile, const codec::Codec& codec) {
    std::vector<std::byte> payload(codec.payload_bytes());
    codec.encode(gradient_of(tile), payload);
    return payload;
}

// Puts a gradient for every tile, used by all steps.
void put_gradients(csd::Device& device, const codec::Codec& codec) {
    std::vector<std::vector<std::byte>> payloads;
    for (std::size_t tile = 0; tile < kGradients; ++tile) {
        payloads.push_back(payload_of(tile, codec));
    }
    const std::vector<float> unused(kTileElems);  // a device near storage sums payloads itself
    for (const shard::Subgroup& subgroup : device.subgroups()) {
        for (std::size_t tile = subgroup.tiles.begin; tile < subgroup.tiles.end; ++tile) {
            const std::span<const std::byte> payload = payloads[tile % kGradients];
            device.put_gradient(tile, {&payload, 1}, unused);
        }
    }
    device.finish_gradients();
}

// Applies `steps` updates to stored state with the scalar engine, the reference for the others.
void update_in_memory(csd::StateFormat format, State& state, shard::TileRange tiles,
                      std::int64_t steps, const codec::Codec& codec) {
    const csd::UpdateEngine& scalar = csd::engines().front();
    memory::Buffer payload(csd::state_bytes(format, tiles.size()));
    csd::narrow(format, state.arrays(), payload.span());
    std::vector<float> sum(kTileElems);
    std::vector<float> parameters(kTileElems);
    for (std::size_t tile = 0; tile < tiles.size(); ++tile) {
        const std::vector<std::byte> gradient = payload_of(tiles.begin + tile, codec);
        const std::span<const std::byte> source = gradient;
        codec::decode_sum(codec, {&source, 1}, 0, sum);
        for (std::int64_t step = 0; step < steps; ++step) {
            scalar.update(scalars(),
                          {.format = format,
                           .state = csd::state_of_tile(format, payload.span(), tiles.size(), tile),
                           .gradient = sum.data(),
                           .parameters = parameters.data(),
                           .parameter_dtype = Dtype::fp32,
                           .key = arith::tile_key(scalars().random_key, tiles.begin + tile),
                           .count = kTileElems});
        }
    }
    csd::widen(format, payload.span(), state.arrays());
}

bool has_same_bits(const std::vector<float>& one, const std::vector<float>& other) {
    return std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

// Reads the extents of one generation and writes their payloads unchanged as the next. Under a
// transfer handler it makes the same requests as an emulated device near storage: same offsets,
// sizes and order. It takes no gradients, updates nothing and delivers nothing, so it is that
// device's ceiling.
class RawDevice : public csd::StoredDevice {
public:
    using StoredDevice::StoredDevice;

    std::string describe_io() const override { return describe_transport(); }
    void use_codec(const codec::Codec&) override {}
    void put_gradient(std::size_t, std::span<const std::span<const std::byte>>,
                      std::span<const float>) override {}
    void finish_gradients() override {}
    void update(int, std::size_t, const csd::StepScalars&, std::span<std::byte>) override {}
    Ticket deliver(int, std::size_t, std::span<std::byte>,
                   const DeliveryCallback& on_delivered) override {
        on_delivered();
        return {};
    }
    void allocate_slot(int slot) override {
        slots_.at(static_cast<std::size_t>(slot)) = memory::Buffer(layout().most_extent_bytes());
    }
    void release_slot(int slot) override { slots_.at(static_cast<std::size_t>(slot)) = {}; }
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override {
        return state_.volume().read(extent_in(slot, subgroup),
                                    layout().extent_offset(subgroup, generation));
    }
    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override {
        const std::span<std::byte> extent = extent_in(slot, subgroup);
        state_.seal(extent, subgroup, generation);
        return state_.volume().write(extent, layout().extent_offset(subgroup, generation));
    }

private:
    std::span<std::byte> extent_in(int slot, std::size_t subgroup) {
        return slots_.at(static_cast<std::size_t>(slot))
            .span()
            .first(layout().extent_bytes(subgroup));
    }

    std::vector<memory::Buffer> slots_{static_cast<std::size_t>(settings_.slots)};
};

}  // namespace

CsdRow::CsdRow(CsdRowSettings settings, CsdScene& scene)
    : settings_(std::move(settings)), scene_(scene) {
    const shard::Partition partition = partition_of(settings_, scene_);
    try {
        for (int device = 0; device < settings_.devices; ++device) {
            add_device(device, partition);
        }
    } catch (...) {  // such as a drive that is full
        remove_files();
        throw;
    }
}

CsdRow::~CsdRow() { remove_files(); }

void CsdRow::remove_files() {
    handlers_.clear();
    devices_.clear();
    for (const std::string& file : files_) {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
    }
}

std::size_t CsdRow::storage_bytes(const CsdRowSettings& settings, const CsdScene& scene) {
    const shard::Partition partition = partition_of(settings, scene);
    std::size_t bytes = 0;
    for (int device = 0; device < settings.devices; ++device) {
        bytes +=
            csd::StateLayout(partition.subgroups_of(device), settings.state, false).total_bytes();
    }
    return bytes;
}

std::string CsdRow::file_of(int device) const {
    return text(scene_.folder, "/", settings_.name, ".device-", device, ".state");
}

void CsdRow::add_device(int device, const shard::Partition& partition) {
    if (std::filesystem::exists(file_of(device))) {
        throw ConfigError(text("The file ", file_of(device),
                               " is in the way of the measurement: remove it, or choose another "
                               "folder."));
    }
    files_.push_back(file_of(device));
    csd::DeviceSettings made_of;
    made_of.name = text("bench ", settings_.name, " device ", device);
    made_of.files = {file_of(device)};
    made_of.subgroups = partition.subgroups_of(device);
    made_of.parameters = scene_.parameters;
    made_of.codec = scene_.codec;
    made_of.state = settings_.state;
    made_of.slots = settings_.slots;
    made_of.io = settings_.io;
    made_of.digest = settings_.is_raw ? store::PayloadDigest::absent : settings_.digest;
    made_of.gpu = settings_.has_gpu ? std::optional(0) : std::nullopt;
    made_of.executor = &executor_;
    if (settings_.is_raw) {
        csd::prepare_storage(made_of);
        devices_.push_back(std::make_unique<RawDevice>(made_of, traffic_));
    } else {
        devices_.push_back(csd::make_cpu_device(made_of, traffic_));
    }
    csd::Device& made = *devices_.back();
    made.reserve();
    write_start_state(made);
    put_gradients(made, *scene_.codec);
    handlers_.push_back(std::make_unique<csd::TransferHandler>(csd::HandlerKind::overlapped, made));
}

void CsdRow::write_start_state(csd::Device& device) {
    for (std::size_t subgroup = 0; subgroup < device.subgroups().size(); ++subgroup) {
        State state = start_state(device.subgroups()[subgroup].tiles);
        device.write_state(subgroup, 0, state.arrays());
    }
}

double CsdRow::run(int steps) {
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < steps; ++step) {
        for (const auto& handler : handlers_) {
            handler->start(scalars(), generation_, scene_.vector.span());
        }
        for (const auto& handler : handlers_) {
            handler->finish();
        }
        std::vector<Ticket> flushes;
        for (std::size_t i = 0; settings_.is_durable && i < devices_.size(); ++i) {
            flushes.push_back(devices_[i]->flush());
        }
        for (Ticket& flush : flushes) {
            flush.wait();
        }
        ++generation_;
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::size_t CsdRow::verify() {
    std::size_t compared = 0;
    for (const auto& device : devices_) {
        const std::size_t count = device->subgroups().size();
        if (count == 0) {
            continue;  // more devices than tiles
        }
        for (const std::size_t subgroup : std::set{std::size_t{0}, count / 2, count - 1}) {
            verify_subgroup(*device, subgroup);
            ++compared;
        }
    }
    return compared;
}

void CsdRow::verify_subgroup(csd::Device& device, std::size_t subgroup) {
    const shard::TileRange tiles = device.subgroups()[subgroup].tiles;
    State expected = start_state(tiles);
    update_in_memory(settings_.state, expected, tiles, settings_.is_raw ? 0 : generation_,
                     *scene_.codec);
    State seen(tiles.size());
    device.read_state(subgroup, generation_, seen.arrays());
    const bool is_state_right = has_same_bits(seen.master, expected.master) &&
                                has_same_bits(seen.moment1, expected.moment1) &&
                                has_same_bits(seen.moment2, expected.moment2);
    if (!is_state_right) {
        throw Error(text("The state of subgroup ", subgroup, " of \"", device.name(), "\" after ",
                         generation_,
                         " steps is not what the update gives in memory: nothing of this benchmark "
                         "counts; please report it."));
    }
    if (!settings_.is_raw) {
        std::vector<std::byte> parameters(expected.master.size() * size_bytes(Dtype::bf16));
        convert_from_fp32(expected.master.data(), Dtype::bf16, parameters.data(),
                          expected.master.size());
        const std::size_t begin = tiles.begin * kTileElems * size_bytes(Dtype::bf16);
        if (!std::ranges::equal(parameters,
                                scene_.vector.span().subspan(begin, parameters.size()))) {
            throw Error(text("The parameters of subgroup ", subgroup, " of \"", device.name(),
                             "\" are not its masters in 16 bits: nothing of this benchmark counts; "
                             "please report it."));
        }
    }
}

}  // namespace nearstep::bench

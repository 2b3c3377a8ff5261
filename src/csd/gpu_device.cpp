// State in GPU memory, updated there. Made by the engine for tier gpu of csd.tiers.
#include "csd/gpu_device.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "csd/gpu_tensors.hpp"
#include "csd/gpu_tiles.hpp"
#include "csd/payload_memory.hpp"
#include "csd/state_format.hpp"
#include "csd/state_layout.hpp"
#include "csd/state_places.hpp"
#include "memory/buffer.hpp"
#include "memory/gpu.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace nearstep::csd {

namespace {

using shard::kTileElems;
using trace::Counter;

class GpuDevice : public Device {
public:
    GpuDevice(const DeviceSettings& settings, trace::Traffic& traffic)
        : settings_(settings),
          traffic_(&traffic),
          layout_(settings.subgroups, settings.state, false, settings.spare),
          payloads_(*settings.codec, settings.most_payload_bytes, layout_.tiles(),
                    static_cast<std::size_t>(settings.sources)),
          pinned_(on_gpu(payloads_.span())),
          slots_(static_cast<std::size_t>(settings.slots)),
          places_(layout_.subgroups(), layout_.places(), layout_.places(),
                  StatePlaces::Frees::when_stored),
          thread_blocks_(kBlocksOfEach *
                         static_cast<unsigned>(memory::multiprocessors_of_gpu(*settings.gpu))) {
        const std::size_t bytes = layout_.places() * layout_.most_extent_bytes();
        check_room(bytes);
        state_ = memory::GpuBuffer(bytes);
    }

    const std::string& name() const override { return settings_.name; }
    const std::vector<shard::Subgroup>& subgroups() const override { return settings_.subgroups; }
    int slots() const override { return static_cast<int>(slots_.size()); }
    std::string describe_io() const override {
        return text("GPU memory, ", human_bytes(static_cast<double>(state_.size())));
    }
    std::vector<std::uint64_t> written_bytes() const override { return {0}; }
    Ticket flush() override { return {}; }
    void use_codec(const codec::Codec& codec) override { payloads_.use(codec); }
    void use_groups(const GroupMap& groups) override { settings_.groups = groups; }
    bool takes_tiles_in_order() const override { return false; }
    void finish_gradients() override {}

    void reserve() override { places_.clear(); }
    std::size_t most_unaccepted() const override { return layout_.spare(); }
    void accept(std::int64_t generation) override { places_.accept(generation); }
    void deliver_to(GpuTensors* tensors) override { tensors_ = tensors; }

    void put_gradient(std::size_t tile, Payloads payloads,
                      std::span<const float> /*sum*/) override {
        const std::size_t local = layout_.local_tile(settings_.subgroups, tile);
        traffic_->add(Counter::host_gradients_write, payloads_.put(local, payloads));
    }

    void allocate_slot(int slot) override {
        use_gpu();
        GpuSlot& made = slots_.at(static_cast<std::size_t>(slot));
        made.payloads = memory::GpuBuffer(layout_.most_tiles() * payload_bytes_of_tile());
        made.parameters = memory::GpuBuffer(parameter_bytes_of_slot());
    }
    void release_slot(int slot) override {
        use_gpu();
        slots_.at(static_cast<std::size_t>(slot)) = GpuSlot();
    }

    // The state stays where it is.
    Ticket read(int slot, std::size_t subgroup, std::int64_t generation) override {
        slots_.at(static_cast<std::size_t>(slot)).from = generation;
        traffic_->add(Counter::internal_read, layout_.payload_bytes(subgroup));
        return {};
    }

    void update(int slot, std::size_t subgroup, const StepScalars& scalars,
                std::span<std::byte> /*destination*/) override {
        use_gpu();
        GpuSlot& s = slots_.at(static_cast<std::size_t>(slot));
        const memory::Stream& stream = stream_of(slot);
        places_.take(subgroup, s.from + 1);  // waits until one is free
        const std::size_t tiles = layout_.tiles_in(subgroup);
        memory::copy_to_gpu(
            s.payloads.span().first(tiles * payload_bytes_of_tile()),
            payloads_.span().subspan(layout_.first_tile(subgroup) * payload_bytes_of_tile(),
                                     tiles * payload_bytes_of_tile()),
            stream);
        GpuTiles all;
        all.format = settings_.state;
        all.old = state_of_tile(settings_.state, state_of(subgroup, s.from), tiles, 0);
        all.updated = state_of_tile(settings_.state, state_of(subgroup, s.from + 1), tiles, 0);
        all.payloads = s.payloads.span().data();
        all.payload_stride = payloads_.stride();
        all.sources = static_cast<unsigned>(settings_.sources);
        all.codec = *payloads_.codec().kernel_form();
        all.parameters = s.parameters.span().data();
        all.parameter_dtype = settings_.parameter_dtype;
        all.first_tile = settings_.subgroups[subgroup].tiles.begin;
        all.tiles = tiles;
        const TilesByGroup divided =
            tiles_by_group(all.first_tile, tiles, settings_.groups, scalars);
        s.to_host.clear();
        s.in_tensors = 0;
        GpuTensors* tensors = tensors_;
        for (const TilesByGroup::GroupTiles& one : divided.runs) {
            GpuTiles run = run_of(all, one, scalars);
            if (tensors != nullptr && tensors->cover(run.first_tile, run.tiles)) {
                stream.wait_for(tensors->unused());
                tensors->take(run);
                s.in_tensors += parameter_bytes(run.tiles);
            } else {
                s.to_host.push_back({one.begin, one.end});
            }
            update_on_gpu(run, stream.handle(), thread_blocks_);
        }
        for (const std::size_t tile : divided.others) {
            update_on_host(part_of(all, tile, 1), layout_.first_tile(subgroup) + tile, scalars,
                           stream);
            s.to_host.push_back({tile, tile + 1});
        }
        s.updated.record(stream);
    }

    Ticket deliver(int slot, std::size_t subgroup, std::span<std::byte> destination,
                   const DeliveryCallback& on_delivered) override {
        GpuSlot& s = slots_.at(static_cast<std::size_t>(slot));
        if (settings_.delivery == Delivery::none) {
            s.on_delivered = on_delivered;
            return {};
        }
        const std::span<std::byte> to =
            destination.subspan(parameter_bytes(settings_.subgroups[subgroup].tiles.begin),
                                parameter_bytes(layout_.tiles_in(subgroup)));
        traffic_->add(Counter::gpu_parameters, s.in_tensors);
        traffic_->add(Counter::host_parameters, to.size() - s.in_tensors);
        return copies_.submit([this, &s, to, on_delivered] {
            use_gpu();
            deliveries_.wait_for(s.updated);
            for (const shard::TileRange& tiles : s.to_host) {
                const std::size_t begin = parameter_bytes(tiles.begin);
                const std::size_t bytes = parameter_bytes(tiles.size());
                memory::copy_to_host(to.subspan(begin, bytes),
                                     s.parameters.span().subspan(begin, bytes), deliveries_);
            }
            deliveries_.wait();
            on_delivered();
        });
    }

    Ticket write(int slot, std::size_t subgroup, std::int64_t generation) override {
        GpuSlot& s = slots_.at(static_cast<std::size_t>(slot));
        return copies_.submit([this, &s, subgroup, generation] {
            try {
                use_gpu();
                s.updated.wait();
            } catch (...) {  // others may wait for a place
                places_.fail(std::current_exception());
                throw;
            }
            places_.finish(subgroup, generation);
            traffic_->add(Counter::internal_write, layout_.payload_bytes(subgroup));
            if (const DeliveryCallback on_delivered = std::exchange(s.on_delivered, nullptr)) {
                on_delivered();
            }
        });
    }

    void read_state(std::size_t subgroup, std::int64_t generation,
                    const StateArrays& state) override {
        memory::Buffer payload(layout_.payload_bytes(subgroup));
        copy_out(payload.span(), state_of(subgroup, generation));
        widen(settings_.state, payload.span(), state);
        traffic_->add(Counter::checkpoint, payload.size());
    }

    void write_state(std::size_t subgroup, std::int64_t generation,
                     const StateArrays& state) override {
        memory::Buffer payload(layout_.payload_bytes(subgroup));
        narrow(settings_.state, state, payload.span());
        if (settings_.state != StateFormat::fp32) {
            widen(settings_.state, payload.span(), state);
        }
        write_stored(subgroup, generation, payload);
    }

    std::span<std::byte> room_for(std::size_t subgroup, std::int64_t /*generation*/,
                                  memory::Buffer& memory) override {
        const std::size_t bytes = layout_.payload_bytes(subgroup);
        if (memory.size() < bytes) {
            memory = memory::Buffer(bytes);
        }
        const std::span<std::byte> payload = memory.span().first(bytes);
        clear_after_arrays(settings_.state, payload, layout_.tiles_in(subgroup));
        return payload;
    }

    void write_stored(std::size_t subgroup, std::int64_t generation,
                      memory::Buffer& memory) override {
        const auto payload = memory.span().first(layout_.payload_bytes(subgroup));
        use_gpu();
        places_.replace(subgroup, generation);
        const memory::Stream stream;
        memory::copy_to_gpu(state_of(subgroup, generation), payload, stream);
        stream.wait();
        places_.finish(subgroup, generation);
        traffic_->add(Counter::checkpoint, payload.size());
    }

    // Masters are the first array of a payload.
    Ticket read_masters(std::size_t subgroup, std::int64_t generation, std::size_t first,
                        std::span<std::byte> to) override {
        const std::size_t begin = first * size_bytes(master_dtype(settings_.state));
        return copies_.submit(
            [this, to, from = state_of(subgroup, generation).subspan(begin, to.size())] {
                copy_out(to, from);
                traffic_->add(Counter::host_masters_read, to.size());
            });
    }

private:
    static constexpr std::int64_t kNone = -1;
    // Thread blocks of an update on each multiprocessor, as many as its registers suffice for.
    static constexpr unsigned kBlocksOfEach = 4;

    struct GpuSlot {
        memory::GpuBuffer payloads;
        memory::GpuBuffer parameters;  // of tiles whose tensors do not take them
        memory::Event updated{memory::EventWait::sleeps};
        std::int64_t from = kNone;              // the generation that was read
        std::vector<shard::TileRange> to_host;  // of the subgroup: parameters that leave the GPU
        std::size_t in_tensors = 0;             // bytes of the others
        DeliveryCallback on_delivered;          // without delivery: what write() calls
    };

    void use_gpu() const { memory::use_gpu(*settings_.gpu); }

    // The first to use the GPU is the constructor.
    std::span<const std::byte> on_gpu(std::span<const std::byte> memory) const {
        use_gpu();
        return memory;
    }

    void check_room(std::size_t state_bytes) const {
        const std::size_t bytes =
            state_bytes + slots_.size() * (layout_.most_tiles() * payload_bytes_of_tile() +
                                           parameter_bytes_of_slot());
        const std::size_t free = memory::room_of_gpu().free_bytes;
        if (bytes > free) {
            throw ConfigError(text(
                "The state of ", settings_.name, " takes ", human_bytes(static_cast<double>(bytes)),
                " of GPU ", *settings_.gpu, ", which has ", human_bytes(static_cast<double>(free)),
                " free: lower csd.tiers.gpu."));
        }
    }

    std::size_t payload_bytes_of_tile() const {
        return static_cast<std::size_t>(settings_.sources) * payloads_.stride();
    }
    std::size_t parameter_bytes(std::size_t tiles) const {
        return tiles * kTileElems * size_bytes(settings_.parameter_dtype);
    }
    std::size_t parameter_bytes_of_slot() const {
        return settings_.delivery == Delivery::none ? 0 : parameter_bytes(layout_.most_tiles());
    }

    // Neighbouring slots use two streams, so that the payloads of one arrive while the GPU updates
    // the other.
    const memory::Stream& stream_of(int slot) const {
        return updates_.at(static_cast<std::size_t>(slot) % updates_.size());
    }

    std::span<std::byte> state_of(std::size_t subgroup, std::int64_t generation) {
        const std::optional<std::size_t> place = places_.find(subgroup, generation);
        expects(place.has_value(), "the GPU holds what is read");
        return state_.span().subspan(*place * layout_.most_extent_bytes(),
                                     layout_.payload_bytes(subgroup));
    }

    void copy_out(std::span<std::byte> to, std::span<const std::byte> from) const {
        use_gpu();
        const memory::Stream stream;
        memory::copy_to_host(to, from, stream);
        stream.wait();
    }

    // A tile of several groups, or of one that is skipped.
    void update_on_host(const GpuTiles& tile, std::size_t local_tile, const StepScalars& scalars,
                        const memory::Stream& stream) {
        memory::Buffer state(state_bytes(settings_.state, 1));
        memory::Buffer parameters(parameter_bytes(1));
        const StatePointers here = state_of_tile(settings_.state, state.span(), 1, 0);
        const auto on_host = arrays_of(settings_.state, here, kTileElems);
        const auto old = arrays_of(settings_.state, tile.old, kTileElems);
        for (std::size_t array = 0; array < old.size(); ++array) {
            memory::copy_to_host(on_host[array], old[array], stream);
        }
        stream.wait();
        std::vector<float> gradient(kTileElems);
        payloads_.sum(local_tile, 0, gradient);
        UpdateRun run;
        run.format = settings_.state;
        run.state = here;
        run.gradient = gradient.data();
        run.parameters = parameters.span().data();
        run.parameter_dtype = settings_.parameter_dtype;
        run.key = arith::tile_key(scalars.random_key, tile.first_tile);
        run.count = kTileElems;
        csd::update(best_engine(), scalars, settings_.groups, tile.first_tile * kTileElems, run);
        const auto updated = arrays_of(settings_.state, tile.updated, kTileElems);
        for (std::size_t array = 0; array < updated.size(); ++array) {
            memory::copy_to_gpu(updated[array], on_host[array], stream);
        }
        if (tile.parameters != nullptr) {
            memory::copy_to_gpu({tile.parameters, parameters.size()}, parameters.span(), stream);
        }
        stream.wait();
    }

    DeviceSettings settings_;
    trace::Traffic* traffic_;
    StateLayout layout_;
    PayloadMemory payloads_;
    memory::PinnedRange pinned_;
    std::vector<GpuSlot> slots_;
    StatePlaces places_;
    unsigned thread_blocks_;
    memory::GpuBuffer state_;
    std::atomic<GpuTensors*> tensors_ = nullptr;
    std::array<memory::Stream, 2> updates_{memory::Stream(memory::StreamPriority::high),
                                           memory::Stream(memory::StreamPriority::high)};
    memory::Stream deliveries_;
    Executor copies_{1};  // last, so that it ends before what it uses
};

}  // namespace

std::unique_ptr<Device> make_gpu_device(const DeviceSettings& settings, trace::Traffic& traffic) {
    expects(settings.gpu && settings.codec != nullptr && settings.sources >= 1,
            "a device in GPU memory has a GPU, a codec and a source of gradients");
    expects(settings.spare > 0, "its subgroups share spare places");
    expects(settings.delivery != Delivery::deltas, "deltas leave the host's engine");
    return std::make_unique<GpuDevice>(settings, traffic);
}

}  // namespace nearstep::csd

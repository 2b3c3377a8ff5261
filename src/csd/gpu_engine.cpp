// Hands subgroups of mapped state to a GPU and back. Used by CpuDevice.
#include "csd/gpu_engine.hpp"

#include "base/error.hpp"
#include "base/stopwatch.hpp"
#include "base/units.hpp"
#include "csd/gpu_tiles.hpp"
#include "csd/state_format.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace nearstep::csd {

namespace {

// Streams and events are made on the GPU that the thread uses.
GpuEngineSettings used(const GpuEngineSettings& settings) {
    memory::use_gpu(settings.gpu);
    return settings;
}

// Pins one piece of memory at a time in this process, whichever device asks. After each piece the
// next one waits as long as the piece took: while memory is pinned, whoever allocates memory of a
// GPU has to wait, such as a model in its first step.
void pin_in_turn(std::span<const std::byte> piece, std::vector<memory::PinnedRange>& pinned) {
    static std::mutex turn;
    const std::lock_guard lock(turn);
    Stopwatch watch;
    pinned.emplace_back(piece);
    std::this_thread::sleep_for(std::chrono::duration<double>(watch.lap()));
}

// Decrements a counter when it is destroyed.
class OneLess {
public:
    explicit OneLess(std::atomic<int>& count) : count_(count) {}
    OneLess(const OneLess&) = delete;
    OneLess& operator=(const OneLess&) = delete;
    ~OneLess() {
        --count_;
        count_.notify_all();
    }

private:
    std::atomic<int>& count_;
};

std::size_t bytes_of_parameters(const GpuTiles& tiles) {
    return tiles.tiles * shard::kTileElems * size_bytes(tiles.parameter_dtype);
}

}  // namespace

GpuEngine::GpuEngine(const GpuEngineSettings& settings)
    : settings_(used(settings)),
      memory_(settings.lanes_on_gpu * settings.lane_bytes),
      lanes_(settings.lanes) {}

GpuEngine::~GpuEngine() { is_closing_ = true; }

std::string GpuEngine::describe() const {
    const auto bytes = static_cast<double>(memory_.size());
    return bytes == 0 ? "; the GPU helps to update it"
                      : text("; the GPU helps to update it, with ", human_bytes(bytes),
                             " of its memory to read ahead");
}

void GpuEngine::pin(std::vector<std::span<const std::byte>> pieces) {
    if (pinning_) {
        return;
    }
    pinning_ = copies_.submit([this, pieces = std::move(pieces)] {
        memory::use_gpu(settings_.gpu);
        for (const std::span<const std::byte> piece : pieces) {
            if (is_closing_) {
                return;
            }
            pin_in_turn(piece, pinned_);
        }
        is_ready_ = std::ranges::all_of(pieces, memory::is_pinned);
    });
}

std::span<std::byte> GpuEngine::memory_of(std::size_t lane, std::size_t bytes) {
    return memory_.span().subspan(lane * settings_.lane_bytes, bytes);
}

bool GpuEngine::read(std::size_t lane, std::span<const std::byte> state) {
    GpuLane& to = lanes_.at(lane);
    to.leaving.clear();
    to.is_asked = is_ready_ && lane < settings_.lanes_on_gpu;
    if (to.is_asked) {
        to.reading = copies_.submit([this, &to, place = memory_of(lane, state.size()), state] {
            memory::use_gpu(settings_.gpu);
            copy_to_gpu(place, state, reads_);
            to.read.record(reads_);
            to.read.wait();
        });
    }
    return to.is_asked;
}

bool GpuEngine::reaches(std::span<const std::byte> vector) {
    if (reached_ != vector.data()) {
        memory::use_gpu(settings_.gpu);  // or CUDA does not say where the GPU sees the memory
        reached_ = memory::is_pinned(vector) ? vector.data() : nullptr;
    }
    return reached_ != nullptr;
}

bool GpuEngine::takes(std::size_t lane, std::span<const std::byte> vector) {
    GpuLane& of = lanes_.at(lane);
    of.is_read = of.is_asked && of.reading.is_complete();
    of.is_updated = is_ready_ && (vector.empty() || reaches(vector)) &&
                    (of.is_read || to_deliver_ < kMostAtOnce);
    return of.is_updated;
}

void GpuEngine::use_tensors(GpuTensors& tensors, GpuTiles& run, GpuLane& lane,
                            const memory::Stream& stream) {
    if (lane.in_tensors == 0) {  // the stream waits once for all runs of the subgroup
        stream.wait_for(tensors.unused());
    }
    tensors.take(run);
    lane.in_tensors += bytes_of_parameters(run);
    const bool are_masters =
        run.format == StateFormat::compact && run.parameter_dtype == Dtype::bf16;
    if (are_masters && !lane.is_read && tensors.are_written() != nullptr) {
        run.are_written = tensors.are_written();
        lane.masters_in_tensors += bytes_of_parameters(run);
    }
}

std::vector<std::size_t> GpuEngine::begin(std::size_t lane, const GpuTiles& subgroup,
                                          const GroupMap& groups, const StepScalars& scalars,
                                          GpuTensors* tensors) {
    memory::use_gpu(settings_.gpu);
    GpuLane& to = lanes_.at(lane);
    const memory::Stream& stream = updates_.at(begun_++ % kStreams);
    to.in_tensors = 0;
    to.masters_in_tensors = 0;
    GpuTiles all = subgroup;
    if (to.is_read) {  // an update in place
        const std::size_t bytes = state_bytes(subgroup.format, subgroup.tiles);
        all.old = state_of_tile(subgroup.format, memory_of(lane, bytes), subgroup.tiles, 0);
        all.updated = all.old;
        all.parameters = subgroup.parameters == nullptr
                             ? nullptr
                             : memory_of(lane, settings_.lane_bytes).data() + bytes;
        to.reading.wait();  // throws its error
    }
    TilesByGroup tiles = tiles_by_group(subgroup.first_tile, subgroup.tiles, groups, scalars);
    for (const TilesByGroup::GroupTiles& one : tiles.runs) {
        GpuTiles run = run_of(all, one, scalars);
        if (tensors != nullptr && tensors->cover(run.first_tile, run.tiles)) {
            use_tensors(*tensors, run, to, stream);
        }
        update_on_gpu(run, stream.handle(), settings_.thread_blocks);
        if (to.is_read) {
            to.leaving.push_back({run, part_of(subgroup, one.begin, one.end - one.begin)});
        }
    }
    to.updated.record(stream);
    ++to_deliver_;
    return std::move(tiles.others);
}

void GpuEngine::deliver_now(GpuLane& lane) {
    const OneLess delivered(to_deliver_);
    memory::use_gpu(settings_.gpu);
    lane.updated.wait();
    for (const auto& [from, to] : lane.leaving) {
        if (from.tensors == nullptr && from.parameters != nullptr) {
            const std::size_t bytes = bytes_of_parameters(from);
            copy_to_host({to.parameters, bytes}, {from.parameters, bytes}, deliveries_);
        }
    }
    lane.delivered.record(deliveries_);
    lane.delivered.wait();
}

Ticket GpuEngine::deliver(std::size_t lane, std::function<void()> on_delivered) {
    return waits_.submit([this, &of = lanes_.at(lane), on_delivered = std::move(on_delivered)] {
        deliver_now(of);
        on_delivered();
    });
}

// Arrays that are neighbours in both places go in one copy.
void GpuEngine::copy_state(const Leaving& tiles, std::ptrdiff_t away,
                           const memory::Stream& stream) {
    const std::size_t elems = tiles.from.tiles * shard::kTileElems;
    const auto from = arrays_of(tiles.from.format, tiles.from.updated, elems);
    const auto to = arrays_of(tiles.to.format, tiles.to.updated, elems);
    std::size_t next = 0;
    while (next < from.size()) {
        const std::size_t first = next++;
        std::size_t bytes = from.at(first).size();
        while (next < from.size() && from.at(next).data() == from.at(first).data() + bytes &&
               to.at(next).data() == to.at(first).data() + bytes) {
            bytes += from.at(next++).size();
        }
        copy_to_host({to.at(first).data() + away, bytes}, {from.at(first).data(), bytes}, stream);
    }
}

Ticket GpuEngine::write(std::size_t lane, Leave leave) {
    GpuLane& of = lanes_.at(lane);
    if (!of.is_updated) {
        return {};
    }
    if (!of.is_read) {  // the update has written it
        return waits_.submit([&of] { of.updated.wait(); });
    }
    return copies_.submit([this, &of, leave = std::move(leave)] {
        memory::use_gpu(settings_.gpu);
        const bool are_in_state =
            !of.leaving.empty() && of.leaving.front().from.parameters == nullptr;
        for (int waiting = to_deliver_; waiting > 0 && !are_in_state; waiting = to_deliver_) {
            to_deliver_.wait(waiting);
        }
        writes_.wait_for(of.updated);
        const std::ptrdiff_t away = leave();
        for (const Leaving& tiles : of.leaving) {
            copy_state(tiles, away, writes_);
        }
        of.written.record(writes_);
        of.written.wait();
    });
}

}  // namespace nearstep::csd

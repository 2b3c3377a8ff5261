#include "offload/parameter_update.hpp"

#include "base/error.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::offload {

ParameterUpdate::ParameterUpdate(const mpi::Communicator& copy_ranks,
                                 const UpdateSettings& settings, const Devices& devices,
                                 trace::Traffic& traffic)
    : copy_ranks_(copy_ranks),
      settings_(settings),
      devices_(devices),
      gather_(copy_ranks, settings.gather, traffic) {
    for (const auto& device : devices_) {
        handlers_.push_back(csd::TransferHandler::make(settings_.handler, *device));
    }
    if (has_deltas()) {
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            messages_.emplace_back(message_room_bytes(device) *
                                   devices_[device]->subgroups().size());
        }
    }
    if (settings_.vector == VectorKind::shared_in_node || settings_.meets_in_node) {
        const auto rank = static_cast<std::size_t>(copy_ranks.rank());
        node_ranks_.emplace(copy_ranks.split(settings_.gather.nodes.group_of[rank]));
    }
}

// The thread of ending_ waits for the handlers, and these wait for tiles that are not yet released.
ParameterUpdate::~ParameterUpdate() {
    if (!is_under_way_) {
        return;
    }
    try {
        if (is_accepted_) {
            finish();
        } else {
            cancel();
        }
    } catch (const Error&) {  // from devices or from ranks that left: nobody handles it
    }
}

int ParameterUpdate::first_device() const {
    return settings_.gather.devices->first(copy_ranks_.rank());
}

std::size_t ParameterUpdate::message_room_bytes(std::size_t device) const {
    const int number = first_device() + static_cast<int>(device);
    return codec::message_room_bytes(settings_.gather.partition->largest_subgroup_tiles(number));
}

ParameterUpdate::Place ParameterUpdate::place_of(std::size_t subgroup) const {
    const shard::Subgroup& found = settings_.gather.partition->subgroups()[subgroup];
    return {static_cast<std::size_t>(found.device - first_device()), found.index};
}

bool ParameterUpdate::has_parameters(std::size_t subgroup) {
    const Place place = place_of(subgroup);
    return handlers_[place.device]->has_parameters(place.subgroup);
}

std::span<const std::byte> ParameterUpdate::find_message(std::size_t subgroup) {
    const Place place = place_of(subgroup);
    if (!handlers_[place.device]->has_parameters(place.subgroup)) {
        return {};
    }
    const std::size_t room = message_room_bytes(place.device);
    return messages_[place.device].span().subspan(place.subgroup * room, room);
}

void ParameterUpdate::read_ahead(std::int64_t from, csd::ReadAhead order) {
    for (const auto& handler : handlers_) {
        handler->read_ahead(from, order);
    }
}

void ParameterUpdate::drop_read_ahead() {
    for (const auto& handler : handlers_) {
        handler->drop_read_ahead();
    }
}

void ParameterUpdate::begin(const csd::StepScalars& scalars, std::int64_t from,
                            std::span<std::byte> vector, std::function<void()> after) {
    expects(!is_under_way_, "an update is finished before the next one begins");
    expects(!has_deltas() || has_equal_copies_,
            "deltas are against parameters that all ranks hold");
    is_under_way_ = true;
    is_accepted_ = false;
    is_cancelled_ = false;
    vector_ = vector;
    met_ = 0;
    gathered_ = std::nullopt;
    began_ = std::nullopt;
    for (std::size_t device = 0; device < handlers_.size(); ++device) {
        handlers_[device]->begin(scalars, from, has_deltas() ? messages_[device].span() : vector);
    }
    ending_ = ending_worker_.submit([this, after = std::move(after)] {
        for (const auto& handler : handlers_) {
            handler->finish();
        }
        written_ = Clock::now();
        if (!is_cancelled_) {
            after();
        }
        ended_ = Clock::now();
    });
}

void ParameterUpdate::release(std::size_t first) {
    for (std::size_t device = 0; device < handlers_.size(); ++device) {
        const std::vector<shard::Subgroup>& subgroups = devices_[device]->subgroups();
        const auto whole = std::partition_point(
            subgroups.begin(), subgroups.end(),
            [&](const auto& subgroup) { return subgroup.tiles.begin < first; });
        handlers_[device]->release(static_cast<std::size_t>(whole - subgroups.begin()));
    }
    if (!began_ && first < settings_.gather.partition->tiles()) {
        began_ = Clock::now();
    }
}

void ParameterUpdate::accept() {
    release(0);
    is_accepted_ = true;
    if (has_deltas()) {
        gather_.begin_deltas(vector_, [this](std::size_t s) { return find_message(s); });
    } else if (gathers()) {
        gather_.begin(vector_, [this](std::size_t s) { return has_parameters(s); });
    }
}

void ParameterUpdate::cancel() {
    is_cancelled_ = true;
    for (const auto& handler : handlers_) {
        handler->cancel();
    }
    ending_.wait();
    is_under_way_ = false;
}

void ParameterUpdate::poll() {
    if (is_under_way_ && is_accepted_ && gathers()) {
        gather_.poll();
        note_gathered();
    }
}

void ParameterUpdate::note_gathered() {
    if (!gathered_ && gathers() && gather_.is_over()) {
        gathered_ = Clock::now();
    }
}

void ParameterUpdate::advance(std::size_t end) {
    if (!is_under_way_ || !is_accepted_ || !gathers()) {
        return;
    }
    gather_.advance(end);
    meet_in_node(end);
    note_gathered();
}

// Before this barrier, other ranks of the node may still write to the shared vector or wait for
// parameters from this rank. They write again only after all ranks have sent the next gradients,
// when all have read the vector.
void ParameterUpdate::meet_in_node(std::size_t end) {
    if (node_ranks_ && end > met_) {
        node_ranks_->barrier();
        met_ = end;
    }
}

UpdateTimes ParameterUpdate::finish() {
    expects(is_under_way_ && is_accepted_, "what is finished has begun and was accepted");
    if (gathers()) {
        gather_.finish();
    }
    meet_in_node(settings_.gather.partition->tiles());
    note_gathered();
    ending_.wait();
    is_under_way_ = false;
    const auto seconds = [](Clock::duration time) {
        return std::chrono::duration<double>(time).count();
    };
    return {.update_s = seconds(std::max(written_, gathered_.value_or(written_)) - *began_),
            .after_s = seconds(ended_ - written_)};
}

void ParameterUpdate::gather(std::span<std::byte> vector) {
    if (!gathers()) {
        return;
    }
    gather_.gather(vector, [](std::size_t) { return true; });
    if (node_ranks_) {
        node_ranks_->barrier();
    }
    has_equal_copies_ = true;
}

void ParameterUpdate::bring(std::span<std::byte> vector, std::span<const shard::TileRange> tiles) {
    gather_.bring(vector, tiles, [this](std::size_t s) {
        return !is_under_way_ || !is_accepted_ || has_parameters(s);
    });
}

}  // namespace nearstep::offload

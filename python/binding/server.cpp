// Runs the engines of a rank that serves, by rank 0's orders, and what of them passes between the
// two. Called by module.cpp for python/nearstep/_serve.py, and by Conductor on the ranks that
// compute.
#include "python/binding/server.hpp"

#include "base/error.hpp"
#include "base/packed.hpp"
#include "engine/placement/devices.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <numeric>
#include <utility>

namespace nearstep::python {

namespace {

constexpr std::size_t kMostElemsAtOnce = std::size_t{1} << 24U;  // of rank 0's values

}  // namespace

std::string formats_of(std::span<const StartValues> values) {
    std::vector<std::optional<Dtype>> formats(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (values[i].stored != nullptr) {
            formats[i] = Dtype::fp32;
        } else if (values[i].piece.address != nullptr) {
            formats[i] = values[i].piece.dtype;
        }
    }
    return packed(formats);
}

// --- What passes between rank 0 and the ranks that serve ---

void Conductor::tell(Deed deed, std::uint64_t what, std::string content) const {
    if (!acts_alone()) {
        MpiThread::instance().tell(
            {.deed = deed, .number = number_, .what = what, .content = std::move(content)});
    }
}

bool Conductor::serves() const { return MpiThread::instance().serves(); }

// Sends the values tensor by tensor, as take_from_rank_0() receives them.
void Conductor::pass_to_servers(std::span<const StartValues> values) {
    if (rank_ != 0 || run_.csd.storage_ranks == 0) {
        return;
    }
    std::vector<float> read;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const engine::Tensor& tensor = layout_.tensors[i];
        const std::size_t elems = elems_of(tensor);
        for (std::size_t at = 0; at < elems; at += kMostElemsAtOnce) {
            const std::size_t count = std::min(elems - at, kMostElemsAtOnce);
            if (values[i].stored != nullptr) {
                read.resize(count);
                checkpoint::Safetensors::read(*values[i].stored, at, read);
                servers_->start_broadcast(std::as_writable_bytes(std::span(read)), 0).wait();
            } else if (values[i].piece.address != nullptr) {
                const std::size_t bytes = size_bytes(values[i].piece.dtype);
                servers_
                    ->start_broadcast(
                        bytes_of(i, values[i].piece).subspan(at * bytes, count * bytes), 0)
                    .wait();
            }
        }
    }
}

// The values of the tiles that this rank owns; others take no memory.
std::vector<StartValues> Conductor::take_from_rank_0(const std::string& told) {
    std::vector<std::optional<Dtype>> formats;
    unpack(told, formats);
    const engine::PlacedSettings& placed = opened_->settings();
    const int ranks = world_->size();
    std::vector<int> all(static_cast<std::size_t>(ranks));  // as there are storage ranks
    std::iota(all.begin(), all.end(), 0);
    const shard::Replica copy = engine::make_copy(placed, layout_.elems, all, ranks);
    served_ = memory::Buffer::untouched(layout_.elems * sizeof(float));
    std::vector<StartValues> values(formats.size());
    std::vector<std::byte> came;
    for (std::size_t i = 0; i < formats.size(); ++i) {
        if (!formats[i]) {
            continue;
        }
        const engine::Tensor& tensor = layout_.tensors.at(i);
        const Dtype dtype = *formats[i];
        const std::size_t bytes = size_bytes(dtype);
        std::byte* const to = served_.span().data() + tensor.offset * sizeof(float);
        values[i].piece = {to, dtype};
        const std::size_t elems = elems_of(tensor);
        for (std::size_t at = 0; at < elems; at += kMostElemsAtOnce) {
            const std::size_t count = std::min(elems - at, kMostElemsAtOnce);
            came.resize(count * bytes);
            servers_->start_broadcast(came, 0).wait();
            for (std::size_t first = at; first < at + count;) {
                const std::size_t tile = (tensor.offset + first) / shard::kTileElems;
                const std::size_t end =
                    std::min(at + count, (tile + 1) * shard::kTileElems - tensor.offset);
                if (copy.owner_of_tile(tile) == world_->rank()) {
                    std::memcpy(to + first * bytes, came.data() + (first - at) * bytes,
                                (end - first) * bytes);
                }
                first = end;
            }
        }
    }
    return values;
}

// --- The rank that serves ---

void Server::run(const Conductor::Poll& poll) {
    std::promise<void> over;
    std::future<void> ended = over.get_future();
    MpiThread::instance().post([this, &over] {
        try {
            follow_all();
            over.set_value();
        } catch (...) {
            over.set_exception(std::current_exception());
        }
    });
    while (ended.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
        poll();
    }
    ended.get();
}

void Server::follow_all() {
    MpiThread& thread = MpiThread::instance();
    thread.serve();
    while (const std::optional<ServeOrder> order = thread.hear()) {
        follow(*order);
    }
}

// Rank 0's first state is in this rank's folders, and each further one in a folder of its own
// there.
std::string Server::below_path(const std::vector<std::string>& settings) {
    const auto is_path = [](const std::string& one) { return one.starts_with("csd.path="); };
    const auto path = std::ranges::find_if(settings, is_path);
    const auto number =
        states_.try_emplace(path == settings.end() ? "" : *path, states_.size()).first->second;
    const bool shares = number > 0 && std::ranges::any_of(settings_, is_path);
    return shares ? text("/optimizer-", number + 1) : "";
}

// Throws what this rank's own settings are refused for: the others wait for it, so that it must
// end.
engine::StartRequest Server::make_engine(const ServeOrder& order) {
    OptimizerPlan plan;
    engine::StartRequest request;
    unpack(order.content, plan, request);
    plan.below_path = below_path(plan.settings);
    plan.settings.insert(plan.settings.end(), settings_.begin(), settings_.end());
    plan.granted_devices = granted_devices_;
    engines_[order.number] = std::make_unique<Conductor>(std::move(plan));
    return request;
}

void Server::begin(Conductor& engine, const ServeOrder& order) {
    const std::vector<StartValues> values = engine.opened_->begins_anew()
                                                ? engine.take_from_rank_0(order.content)
                                                : std::vector<StartValues>();
    engine.prepare_state(values);
    engine.fill_state(values);
}

void Server::follow(const ServeOrder& order) {
    if (order.deed == Deed::meet) {
        MpiThread::instance().meet(static_cast<Purpose>(order.what), false, MpiThread::kEndLimit);
        return;
    }
    const auto request =
        order.deed == Deed::open ? std::optional(make_engine(order)) : std::nullopt;
    // If all ranks refuse an order alike, this rank stays ready for the next order, as they do.
    try {
        if (request) {
            engines_.at(order.number)->open_run(*request);
            return;
        }
        const auto found = engines_.find(order.number);
        expects(found != engines_.end() && found->second->opened_,
                "an engine is opened before it works");
        Conductor& engine = *found->second;
        switch (order.deed) {
            case Deed::meet:
            case Deed::open:
                break;
            case Deed::begin:
                begin(engine, order);
                break;
            case Deed::expect:
                engine.expect_on_all();
                break;
            case Deed::begin_step: {
                engine::StepSettings step;
                unpack(order.content, step.clip_norm, step.groups);
                engine.begin_on_all(step, {}, false);
                break;
            }
            case Deed::put:
                engine.put_on_all(order.what, {}, 1, nullptr);
                break;
            case Deed::end_step:
                engine.end_on_all({}, false);
                break;
            case Deed::change:
                engine.change_masters_to(engine.take_from_rank_0(order.content));
                break;
            case Deed::claim:
                engine.claim_on_all(order.content);
                break;
            case Deed::save:
                engine.save_on_all(order.content, "");
                break;
            case Deed::digest:
                engine.digest_on_all();
                break;
            case Deed::close:
                engine.let_go();
                engine.is_closed_ = true;
                engines_.erase(found);
                return;
        }
        engine.served_ = {};  // what came from rank 0 is in the state
    } catch (const ConfigError&) {
    } catch (const IoError&) {
    }
}

}  // namespace nearstep::python

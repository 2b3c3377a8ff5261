// Adds gradients within groups, encodes the sums and sends the payloads to the tiles' owners, round
// by round. Used by offload's step_pipeline.cpp.
#include "mpi/exchange/gradient_scatter.hpp"

#include "base/error.hpp"
#include "base/random.hpp"

#include <climits>

#include <algorithm>
#include <array>
#include <functional>

namespace nearstep::exchange {

using shard::kTileElems;

namespace {

// The largest message that a Communicator takes.
constexpr std::size_t kMostMessageBytes = INT_MAX;

// Puts copies of `items`, each `bytes` long, side by side in the given order.
void copy_in_order(std::span<const std::byte> items, std::span<const std::uint32_t> order,
                   std::size_t bytes, std::span<std::byte> out) {
    auto to = out.begin();
    for (const std::uint32_t item : order) {
        to = std::ranges::copy(items.subspan(item * bytes, bytes), to).out;
    }
}

}  // namespace

GradientScatter::GradientScatter(const mpi::Communicator& world, const Routes& routes,
                                 const ScatterSettings& settings, std::span<const Route> rounds,
                                 trace::Traffic& traffic)
    : world_(world),
      routes_(routes),
      settings_(settings),
      traffic_(traffic),
      kernels_(codec::best_kernels()),
      encoding_({.codec = settings.codec}),
      most_payload_bytes_(std::max(settings.codec->payload_bytes(), settings.most_payload_bytes)),
      group_ranks_(world.split(routes.group())),
      node_ranks_(world.split(routes.node())),
      spaces_(settings.pool == nullptr ? 1 : static_cast<std::size_t>(settings.pool->members())) {
    allocate(rounds);
    for (WorkSpace& space : spaces_) {
        space = {std::vector<std::byte>(dense_bytes()), std::vector<float>(kTileElems),
                 std::vector<float>(kTileElems)};
    }
    if (settings_.has_residual) {
        residual_.emplace(routes.of({0, routes.owners().tiles()}).sliced);
    }
}

void GradientScatter::allocate(std::span<const Route> rounds) {
    const auto most = [&](auto count) {
        std::size_t largest = 0;
        for (const Route& round : rounds) {
            largest = std::max<std::size_t>(largest, count(round));
        }
        return largest;
    };
    const auto sources = static_cast<std::size_t>(routes_.sources());
    const auto members = static_cast<std::size_t>(group_ranks_.size());
    const bool is_alone = members == 1;
    const bool sends = routes_.sends_payloads();
    struct Message {
        std::vector<std::byte>& memory;
        std::size_t bytes;
        bool is_sent;
    };
    const std::array messages = {
        Message{dense_out_, dense_bytes() * most([&](const Route& round) {
                                return is_alone || settings_.takes_payloads_alone
                                           ? 0
                                           : round.tiles.size();
                            }),
                !is_alone},
        Message{dense_in_, dense_bytes() * members * most([&](const Route& round) {
                               return is_alone || settings_.takes_payloads_alone
                                          ? 0
                                          : round.sliced.size();
                           }),
                !is_alone},
        Message{payloads_out_,
                most_payload_bytes_ * most([](const Route& round) { return round.sent.size(); }),
                sends},
        Message{payloads_in_, most_payload_bytes_ * most([&](const Route& round) {
                                  return sends ? round.received.size() : 0;
                              }),
                sends},
        Message{passed_out_, most_payload_bytes_ * sources * most([](const Route& round) {
                                 return round.passed.size();
                             }),
                true},
        Message{passed_in_, most_payload_bytes_ * sources * most([](const Route& round) {
                                return round.passed_here.size();
                            }),
                true}};
    world_.together([&] {
        for (const Message& message : messages) {
            if (message.is_sent && message.bytes > kMostMessageBytes) {
                throw ConfigError(text("A round of gradients would make one message of ",
                                       message.bytes, " bytes, and MPI takes ", kMostMessageBytes,
                                       " at most: lower csd.subgroup_tiles."));
            }
        }
    });
    for (const Message& message : messages) {
        message.memory.resize(message.bytes);
    }
}

std::size_t GradientScatter::dense_bytes() const {
    return kTileElems * size_bytes(settings_.gradient_dtype);
}

void GradientScatter::begin_step(const StepEncoding& encoding) {
    expects(encoding.codec->payload_bytes() <= most_payload_bytes_,
            "there is room for the codec's payloads");
    expects(residual_ || !encoding.feeds_back, "error feedback has a residual");
    encoding_ = encoding;
}

void GradientScatter::accept() {
    if (encoding_.feeds_back) {
        residual_->accept();
    }
}

// Counts what this rank sends in a round, dense and encoded. Returns the bytes that leave the node.
std::size_t GradientScatter::count_and_tell_leaving(const Route& round) {
    std::size_t leaving = 0;
    const auto count = [&](int to, std::size_t bytes) {
        if (to != routes_.rank()) {
            const bool stays = routes_.is_in_node(to);
            traffic_.add(stays ? trace::Counter::node_gradients : trace::Counter::network_gradients,
                         bytes);
            leaving += stays ? 0 : bytes;
        }
    };
    const std::vector<int>& group = routes_.groups().ranks_beside(routes_.rank());
    for (std::size_t member = 0; member < group.size() && !settings_.takes_payloads_alone;
         ++member) {
        count(group[member], round.slices.count(static_cast<int>(member)) * dense_bytes());
    }
    for (int to = 0; to < world_.size(); ++to) {
        count(to, round.sent.count(to) * payload_bytes());
    }
    return leaving;
}

// Members of the pool take the turns.
void GradientScatter::share(std::size_t count, const Executor::Turn& turn) const {
    if (settings_.pool != nullptr) {
        settings_.pool->share(count, turn);
        return;
    }
    for (std::size_t i = 0; i < count; ++i) {
        turn(i, 0);
    }
}

// Returns every member's dense gradients of this rank's slice, one member's after the other's.
std::span<const std::byte> GradientScatter::exchange_dense(const Route& round,
                                                           const TileReader& read) {
    const std::span<const std::uint32_t> order = round.slices.order();
    share(order.size(), [&](std::size_t i, int member) {
        std::vector<float>& values = spaces_[static_cast<std::size_t>(member)].sum;
        read(round.tiles.begin + order[i], values);
        kernels_.narrow(values.data(), settings_.gradient_dtype,
                        dense_out_.data() + i * dense_bytes(), kTileElems);
    });
    const mpi::Blocks in{std::vector<std::size_t>(static_cast<std::size_t>(group_ranks_.size()),
                                                  round.sliced.size() * dense_bytes())};
    group_ranks_.all_to_all(dense_out_, round.slices.blocks(dense_bytes()), dense_in_, in);
    return dense_in_;
}

// Writes the payloads of this rank's slice to payloads_out_, as in round.sent. A payload that goes
// to several nodes is copied.
void GradientScatter::encode_slice(const Route& round, const TileReader& read) {
    const bool is_alone = group_ranks_.size() == 1;
    const std::span<const std::byte> dense =
        is_alone ? std::span<const std::byte>() : exchange_dense(round, read);
    const std::span<const std::uint32_t> order = round.sent.order();
    const auto payload_of = [&](std::size_t i) {
        return std::span(payloads_out_).subspan(i * payload_bytes(), payload_bytes());
    };
    const std::size_t none = order.size();
    std::vector<std::size_t> first(round.sliced.size(), none);  // of each tile in `order`
    for (std::size_t i = order.size(); i-- > 0;) {
        first[order[i]] = i;
    }
    share(first.size(), [&](std::size_t place, int member) {
        if (first[place] == none) {
            return;
        }
        WorkSpace& space = spaces_[static_cast<std::size_t>(member)];
        const std::size_t tile = round.sliced[place];
        if (is_alone) {  // rounded while it is in the cache
            read(tile, space.sum);
            kernels_.narrow(space.sum.data(), settings_.gradient_dtype, space.rounded.data(),
                            kTileElems);
            add_up(space.rounded, 0, 1, space);
        } else {
            add_up(dense, place, round.sliced.size(), space);
        }
        encode(tile, payload_of(first[place]), space);
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (first[order[i]] != i) {
            std::ranges::copy(payload_of(first[order[i]]), payload_of(i).begin());
        }
    }
}

// Writes to space.sum the group's gradient of one tile: number `place` of the `places` tiles that
// each rank sent.
void GradientScatter::add_up(std::span<const std::byte> dense, std::size_t place,
                             std::size_t places, WorkSpace& space) const {
    const Dtype dtype = settings_.gradient_dtype;
    const auto members = static_cast<std::size_t>(group_ranks_.size());
    kernels_.widen(dtype, dense.data() + place * dense_bytes(), space.sum.data(), kTileElems);
    for (std::size_t member = 1; member < members; ++member) {
        kernels_.add_widened(dtype, dense.data() + (member * places + place) * dense_bytes(),
                             space.sum.data(), kTileElems);
    }
}

// Encodes space.sum, plus the residual with error feedback.
void GradientScatter::encode(std::size_t tile, std::span<std::byte> payload, WorkSpace& space) {
    if (encoding_.feeds_back) {
        kernels_.add(residual_->of(tile).data(), space.sum.data(), kTileElems);
    }
    encoding_.codec->encode(space.sum, payload, arith::tile_key(source_key(), tile));
    if (encoding_.feeds_back) {
        std::ranges::fill(space.decoded, 0.0F);
        encoding_.codec->decode_add(payload, 0, space.decoded);
        std::ranges::transform(space.sum, space.decoded, residual_->next(tile).begin(),
                               std::minus<>());
    }
}

// `out`: the payloads of round.sent.
std::span<const TilePayloads> GradientScatter::deliver(const Route& round,
                                                       std::span<const std::byte> out) {
    const std::size_t leaving_bytes = count_and_tell_leaving(round);
    if (settings_.links != nullptr) {  // wait until the shaped network has let them through
        const shaping::Clock& clock = settings_.links->clock();
        shaping::cross(settings_.links->network(), clock.now(), leaving_bytes, clock);
    }
    std::span<const std::byte> received = out;  // as every slicer is the entry of its tiles
    if (routes_.sends_payloads()) {
        world_.all_to_all(out, round.sent.blocks(payload_bytes()), payloads_in_,
                          round.received.blocks(payload_bytes()));
        received = payloads_in_;
    }
    if (routes_.passes_on()) {
        pass_on(round, received);
    }
    return collect(round, received);
}

// Passes payloads on to all of a node's owners if it has several copies of the state.
void GradientScatter::pass_on(const Route& round, std::span<const std::byte> received) {
    const auto sources = static_cast<std::size_t>(routes_.sources());
    std::vector<std::uint32_t> order;
    for (const std::uint32_t owned : round.passed.order()) {
        const auto places = std::span(round.places).subspan(owned * sources, sources);
        order.insert(order.end(), places.begin(), places.end());
    }
    copy_in_order(received, order, payload_bytes(), passed_out_);
    const mpi::Blocks out = round.passed.blocks(sources * payload_bytes());
    traffic_.add(trace::Counter::node_gradients, out.total());
    node_ranks_.all_to_all(passed_out_, out, passed_in_,
                           round.passed_here.blocks(sources * payload_bytes()));
}

std::span<const TilePayloads> GradientScatter::collect(const Route& round,
                                                       std::span<const std::byte> received) {
    const auto sources = static_cast<std::size_t>(routes_.sources());
    found_.resize(round.places.size());
    taken_.clear();
    for (std::size_t owned = 0; owned < round.owned.size(); ++owned) {
        const Route::Owned& of = round.owned[owned];
        const std::span<const std::byte> from = of.is_passed_on ? passed_in_ : received;
        for (std::size_t i = owned * sources; i < (owned + 1) * sources; ++i) {
            found_[i] = from.subspan(round.places[i] * payload_bytes(), payload_bytes());
        }
        taken_.push_back({of.tile, std::span(found_).subspan(owned * sources, sources)});
    }
    return taken_;
}

std::uint64_t source_key(std::uint64_t random_key, int group) {
    return random_bits(random_key, 0, static_cast<std::uint64_t>(group));
}

std::uint64_t GradientScatter::source_key() const {
    return exchange::source_key(encoding_.random_key, routes_.group());
}

std::span<const TilePayloads> GradientScatter::scatter(const Route& round, const TileReader& read) {
    expects(round.sent.size() * payload_bytes() <= payloads_out_.size(),
            "the tiles are one of the rounds");
    encode_slice(round, read);
    return deliver(round, payloads_out_);
}

std::span<const TilePayloads> GradientScatter::scatter_payloads(const Route& round,
                                                                std::span<const std::byte> made) {
    if (!routes_.sends_payloads()) {
        return deliver(round, made);
    }
    copy_in_order(made, round.sent.order(), payload_bytes(), payloads_out_);
    return deliver(round, payloads_out_);
}

std::span<const TilePayloads> GradientScatter::take_arrived(const Route& round,
                                                            std::span<const std::byte> received) {
    expects(routes_.owners().copies() == 1, "a tile has one owner, who has all its payloads");
    expects(settings_.links == nullptr, "no shaped network holds up what is not sent here");
    count_and_tell_leaving(round);
    return collect(round, received);
}

}  // namespace nearstep::exchange

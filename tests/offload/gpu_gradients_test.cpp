// Compares payloads that GPUs cut, summed, encoded and exchanged with those of the host. Skipped
// with fewer GPUs than ranks.
#include "offload/gpu_gradients.hpp"

#include "codec/codec_kernels.hpp"
#include "mpi/exchange/owner_sum.hpp"
#include "support/test.hpp"

namespace nearstep::offload {
namespace {

using shard::kTileElems;

constexpr std::chrono::seconds kLimit{30};
// Blocks inside one tile, across tiles, and without a tile of their own.
const std::vector<std::size_t> kBlocks = {70000, 10, 20, 900000, 1, 65535, 131072, 3};

float value_of(int rank, int step, std::size_t i) {
    return static_cast<float>(
        random_normal(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(step), i));
}

struct GpuCase {
    std::string name;
    int in_group = 1;         // ranks that sum their gradients; 0: all
    bool is_brought = false;  // payloads travel between GPUs
    Dtype dtype = Dtype::bf16;
    std::vector<std::size_t> blocks = kBlocks;  // elements of each
};

class GpuPayloads : public testing::TestWithParam<GpuCase> {
protected:
    GpuPayloads()
        : world_(mpi::Communicator::world(kLimit)),
          in_group_(GetParam().in_group == 0 ? world_.size() : GetParam().in_group) {}

    void SetUp() override {
        if (memory::gpus() < world_.size()) {
            GTEST_SKIP() << "there are " << memory::gpus() << " GPUs here for " << world_.size()
                         << " ranks";
        }
        const bool has_messages = GetParam().is_brought || in_group_ > 1;
        if (has_messages && nccl::library_version().empty()) {
            GTEST_SKIP() << "there is no NCCL here";
        }
        if (world_.size() % in_group_ != 0) {
            GTEST_SKIP() << "the ranks form no groups of " << in_group_;
        }
        memory::use_gpu(world_.rank());
        std::size_t elems = 0;
        for (const std::size_t size : GetParam().blocks) {
            blocks_.push_back({elems, elems + size});
            elems += size;
        }
        elems_ = elems;
        if (has_messages) {
            watchdog_.emplace();
        }
        if (in_group_ > 1) {
            const mpi::Communicator ranks = world_.split(world_.rank() / in_group_);
            group_.emplace(ranks, world_.rank(), *watchdog_, kLimit);
        }
        if (GetParam().is_brought) {
            all_.emplace(world_, world_.rank(), *watchdog_, kLimit);
        }
        make_routes();
    }

    // Irregular shares: the devices have different speeds.
    void make_routes() {
        std::vector<int> ranks(static_cast<std::size_t>(world_.size()));
        std::iota(ranks.begin(), ranks.end(), 0);
        std::vector<double> speeds;
        std::vector<int> groups;
        for (const int rank : ranks) {
            speeds.push_back(1.0 + 0.7 * rank);
            groups.push_back(rank / in_group_);
        }
        owners_.emplace(std::vector<shard::Replica>{
            {.ranks = ranks,
             .devices = shard::DeviceMap(std::vector<int>(ranks.size(), 1)),
             .partition =
                 shard::Partition({.parameters = elems_, .speeds = speeds, .subgroup_tiles = 3})}});
        routes_.emplace(*owners_, mpi::group_by(groups), mpi::group_by(groups), world_.rank());
    }

    GpuGradients make_gradients(std::size_t most_payload_bytes) {
        GpuGradientSettings settings{.gpu = world_.rank(),
                                     .blocks = blocks_,
                                     .routes = {},
                                     .most_payload_bytes = most_payload_bytes,
                                     .dtype = GetParam().dtype,
                                     .group = group_ ? &*group_ : nullptr,
                                     .payload_ranks = all_ ? &*all_ : nullptr,
                                     .squares = has_squares()};
        for (const ElementRange block : blocks_) {
            settings.routes.push_back(routes_->of(complete_tiles(block)));
        }
        return GpuGradients(settings);
    }

    // Whether payloads of a block are those of all its tiles.
    bool has_squares() const { return world_.size() == 1 && !GetParam().is_brought; }

    // Writes like backward: on the GPU, in the order of its default stream.
    void write(GpuGradients& gradients, std::size_t block, int step) const {
        const std::span<float> space = gradients.space(block);
        std::vector<float> values(blocks_[block].size());
        ASSERT_EQ(space.size(), values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = value_of(world_.rank(), step, blocks_[block].begin + i);
        }
        copy_to_gpu({reinterpret_cast<std::byte*>(space.data()), space.size_bytes()},
                    std::as_bytes(std::span(values)), memory::Stream::of_default());
    }

    static std::uint64_t key_of(int step, int group) {
        return static_cast<std::uint64_t>(10 * step + group);
    }

    // The payload that GradientScatter makes.
    std::vector<std::byte> host_payload(const codec::Codec& codec, int step, std::size_t tile,
                                        int group) const {
        const codec::Kernels& kernels = codec::best_kernels();
        const Dtype dtype = GetParam().dtype;
        std::vector<float> sum(kTileElems, 0.0F);
        std::vector<std::byte> dense(kTileElems * size_bytes(dtype));
        for (int rank = group * in_group_; rank < (group + 1) * in_group_; ++rank) {
            std::vector<float> values(kTileElems, 0.0F);
            for (std::size_t i = 0; i < kTileElems && tile * kTileElems + i < elems_; ++i) {
                values[i] = value_of(rank, step, tile * kTileElems + i);
            }
            kernels.narrow(values.data(), dtype, dense.data(), kTileElems);
            if (rank == group * in_group_) {
                kernels.widen(dtype, dense.data(), sum.data(), kTileElems);
            } else {
                kernels.add_widened(dtype, dense.data(), sum.data(), kTileElems);
            }
        }
        std::vector<std::byte> payload(codec.payload_bytes());
        codec.encode(sum, payload, arith::tile_key(key_of(step, group), tile));
        return payload;
    }

    void expect_payload(std::span<const std::byte> payloads, std::size_t place,
                        const codec::Codec& codec, int step, std::size_t tile, int group) const {
        const std::vector<std::byte> wanted = host_payload(codec, step, tile, group);
        EXPECT_TRUE(
            std::ranges::equal(wanted, payloads.subspan(place * wanted.size(), wanted.size())))
            << codec.name() << ", step " << step << ", tile " << tile << ", group " << group;
    }

    // The squares are the owner's, bit for bit.
    void expect_squares(std::span<const double> squares, std::span<const std::byte> payloads,
                        const codec::Codec& codec) const {
        const std::size_t bytes = codec.payload_bytes();
        ASSERT_EQ(squares.size(), has_squares() ? payloads.size() / bytes : 0);
        exchange::OwnerSum sum;
        sum.begin_step(codec, nullptr, 0);
        for (std::size_t place = 0; place < squares.size(); ++place) {
            const std::span<const std::byte> one = payloads.subspan(place * bytes, bytes);
            EXPECT_EQ(squares[place], sum.take(place, {&one, 1}, kTileElems).squares)
                << codec.name() << ", payload " << place;
        }
    }

    // Returns the number of payloads.
    std::size_t expect_payloads(GpuGradients& gradients, std::size_t block,
                                const codec::Codec& codec, int step) const {
        const exchange::Route& route = gradients.route(block);
        const std::span<const std::byte> payloads = gradients.payloads(block);
        EXPECT_EQ(payloads.size() % codec.payload_bytes(), 0U);
        expect_squares(gradients.squares(block), payloads, codec);
        if (!GetParam().is_brought) {
            for (std::size_t place = 0; place < route.sliced.size(); ++place) {
                expect_payload(payloads, place, codec, step, route.sliced[place], routes_->group());
            }
            return route.sliced.size();
        }
        const auto groups = static_cast<std::size_t>(routes_->sources());
        for (std::size_t i = 0; i < route.places.size(); ++i) {
            expect_payload(payloads, route.places[i], codec, step, route.owned[i / groups].tile,
                           static_cast<int>(i % groups));
        }
        return route.places.size();
    }

    mpi::Communicator world_;
    int in_group_;
    std::vector<ElementRange> blocks_;
    std::size_t elems_ = 0;
    std::optional<nccl::Watchdog> watchdog_;
    std::optional<nccl::Group> group_;
    std::optional<nccl::Group> all_;
    std::optional<shard::Ownership> owners_;
    std::optional<exchange::Routes> routes_;
};

// Steps with several codecs. Payloads are read while the next block is summed, as in training.
TEST_P(GpuPayloads, AreThoseOfTheHost) {
    const auto dense = codec::make_codec({.name = "dense", .dtype = GetParam().dtype});
    const auto topk = codec::make_codec({.name = "topk", .keep = 0.01, .dtype = GetParam().dtype});
    const auto q4 = codec::make_codec({.name = "q4", .rounding = arith::Rounding::stochastic});
    GpuGradients gradients = make_gradients(dense->payload_bytes());
    EXPECT_THROW(gradients.payloads(0), ContractError);
    int step = 0;
    for (const codec::Codec* codec : {dense.get(), q4.get(), topk.get(), q4.get()}) {
        gradients.begin_step(*codec, key_of(step, routes_->group()));
        std::size_t seen = 0;
        for (std::size_t block = blocks_.size(); block-- > 0;) {
            write(gradients, block, step);
            gradients.encode(block);
            if (block + 1 < blocks_.size()) {
                seen += expect_payloads(gradients, block + 1, *codec, step);
            }
        }
        seen += expect_payloads(gradients, 0, *codec, step);
        std::vector<double> all = {static_cast<double>(seen)};
        world_.sum(std::span(all));
        EXPECT_EQ(all.front(), static_cast<double>(shard::tiles_of(elems_) *
                                                   static_cast<std::size_t>(routes_->sources())));
        ++step;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GpuPayloads,
    testing::Values(GpuCase{.name = "alone"}, GpuCase{.name = "summed", .in_group = 0},
                    GpuCase{.name = "summed_fp16", .in_group = 0, .dtype = Dtype::fp16},
                    GpuCase{.name = "summed_fp32", .in_group = 0, .dtype = Dtype::fp32},
                    GpuCase{.name = "brought", .is_brought = true},
                    GpuCase{.name = "summed_and_brought", .in_group = 0, .is_brought = true},
                    GpuCase{.name = "pairs_brought", .in_group = 2, .is_brought = true},
                    GpuCase{.name = "one_element", .blocks = {1}},
                    GpuCase{.name = "one_tile", .blocks = {kTileElems}},
                    GpuCase{.name = "split_tile", .blocks = {kTileElems + 1, kTileElems - 1}},
                    GpuCase{.name = "small_blocks", .blocks = {100, 200, 300}},
                    GpuCase{.name = "large_between_small", .blocks = {10, 400000, 10}}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nearstep::offload

// Tests which bytes of a layer come from where when the GPUs of a node load it together.
#include "feed/node_parts.hpp"

#include "memory/gpu_launch.hpp"
#include "support/test.hpp"

#include <cstring>

namespace nearstep::feed {
namespace {

// Pieces that lie in a slot as padded parameters do, at addresses of their own.
std::vector<HostPiece> some_pieces() {
    return {{.at = 0, .host = 10'000, .bytes = 700},
            {.at = 1024, .host = 20'000, .bytes = 2},
            {.at = 1536, .host = 30'000, .bytes = 5000}};
}
constexpr std::size_t kSlotBytes = 1536 + 5120;

TEST(NodeParts, ThePartsOfAllRanksHaveEachByteOfEachPieceOnce) {
    for (const int ranks : {1, 2, 3, 8, 40}) {
        for (const HostPiece& whole : some_pieces()) {
            std::uint64_t next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const BlockPart part = part_of_block(kSlotBytes, rank, ranks);
                for (const HostPiece& piece : pieces_within(some_pieces(), part)) {
                    EXPECT_GE(piece.at, part.begin);
                    EXPECT_LE(piece.at + piece.bytes, part.end);
                    if (piece.at < whole.at || piece.at >= whole.at + whole.bytes) {
                        continue;
                    }
                    EXPECT_EQ(piece.at - whole.at, next);
                    EXPECT_EQ(piece.host - whole.host, next);
                    next += piece.bytes;
                }
            }
            EXPECT_EQ(next, whole.bytes) << "of " << ranks << " ranks";
        }
    }
}

TEST(NodeParts, APartWithoutPiecesHasNone) {
    EXPECT_TRUE(pieces_within(some_pieces(), {.begin = 700, .end = 1024}).empty());
    EXPECT_TRUE(pieces_within({}, {.begin = 0, .end = 1024}).empty());
}

// A rank's part and a peer's, on one GPU.
class NodePartsOnGpu : public testing::Test {
protected:
    static constexpr std::size_t kBytes = 512 * 1024;
    static constexpr std::size_t kHalf = kBytes / 2;
    static constexpr std::uint64_t kTag = 5;

    void SetUp() override {
        if (memory::gpus() == 0) {
            GTEST_SKIP() << "there is no GPU";
        }
        host_ = memory::PinnedBuffer(kBytes);
        slot_ = memory::GpuBuffer(kBytes);
        std::memset(host_.span().data(), 7, kBytes);
    }

    // Not aligned to 16 bytes, and with a gap behind it.
    std::vector<HostPiece> pieces() {
        const auto host = reinterpret_cast<std::uint64_t>(host_.span().data());
        return {{.at = 0, .host = host + 2, .bytes = 1000},
                {.at = 1024, .host = host + 1024, .bytes = kBytes - 1024}};
    }

    std::vector<std::byte> slot() {
        std::vector<std::byte> found(kBytes);
        const memory::Stream stream;
        memory::copy_to_host(found, slot_.span(), stream);
        stream.wait();
        return found;
    }

    // Fetches the slot's second half from entries whose bytes are 9. Returns its last byte.
    int fetched(std::uint64_t mark) {
        memory::GpuBuffer peer(kEntries * kHalf);
        memory::GpuBuffer words(8 * sizeof(std::uint64_t));
        const memory::Stream stream;
        std::vector<std::byte> nines(kEntries * kHalf, std::byte{9});
        std::array<std::uint64_t, 8> head{};
        head[1] = mark;  // of the second entry
        memory::copy_to_gpu(peer.span(), nines, stream);
        memory::copy_to_gpu(words.span(), std::as_bytes(std::span(head)), stream);
        auto* const at = words.as<std::uint64_t>();
        HostPieces of_host;
        for (const HostPiece& piece : pieces_within(pieces(), {.begin = kHalf, .end = kBytes})) {
            of_host.piece[of_host.count++] = piece;
        }
        const PartFetch fetch{.slot = slot_.as<unsigned char>(),
                              .entries = peer.as<unsigned char>(),
                              .marks = at,
                              .entry_bytes = kHalf,
                              .begin = kHalf,
                              .end = kBytes,
                              .tag = kTag,
                              .step = 1,
                              .patience_ns = 1000,
                              .missed = at + 4,
                              .from_host_bytes = reinterpret_cast<unsigned long long*>(at + 5),
                              .from_peers_bytes = reinterpret_cast<unsigned long long*>(at + 6)};
        memory::start_kernel({.file = "feed/gpu_node_parts.cu",
                              .kernel = "feed::fetch_part",
                              .blocks = 3,
                              .threads = 256},
                             stream, fetch, of_host);
        memory::copy_to_host(std::as_writable_bytes(std::span(head)), words.span(), stream);
        stream.wait();
        from_host_ = head[5];
        from_peers_ = head[6];
        return static_cast<int>(slot().back());
    }

    memory::PinnedBuffer host_;
    memory::GpuBuffer slot_;
    std::uint64_t from_host_ = 0;
    std::uint64_t from_peers_ = 0;
};

TEST_F(NodePartsOnGpu, ComeFromAPeerThatHasThem) {
    EXPECT_EQ(fetched(kTag << kCountBits | 3), 9);
    EXPECT_EQ(from_peers_, kHalf);
    EXPECT_EQ(from_host_, 0U);
}

TEST_F(NodePartsOnGpu, ComeFromHostMemoryIfThePeerHasAnotherLayer) {
    EXPECT_EQ(fetched((kTag + 1) << kCountBits | 3), 7);
    EXPECT_EQ(from_peers_, 0U);
    EXPECT_EQ(from_host_, kHalf);
}

TEST_F(NodePartsOnGpu, ComeFromHostMemoryWithoutPeers) {
    NodeParts parts({.notes = memory::Buffer(2 * kNoteBytes), .rank = 1, .ranks = 2}, kBytes);
    const memory::Stream stream;
    parts.load(kTag, 0, slot_.span(), pieces(), stream);
    stream.wait();
    const std::vector<std::byte> found = slot();
    EXPECT_EQ(found[999], std::byte{7});
    EXPECT_TRUE(std::all_of(found.begin() + 1024, found.end(),
                            [](std::byte one) { return one == std::byte{7}; }));
    EXPECT_EQ(parts.counts().from_host_bytes, kBytes - 24);
}

}  // namespace
}  // namespace nearstep::feed

// Keeps the last parts that a rank copied from host memory on its GPU, with marks that say which
// they are, where peers look for them. Made by python/binding/module.cpp.
#include "feed/node_parts.hpp"

#include "base/error.hpp"
#include "memory/gpu_launch.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace nearstep::feed {

namespace {

constexpr unsigned kBlocks = 16;  // they leave the other multiprocessors to the layers
constexpr unsigned kThreads = 512;
constexpr std::uint64_t kPatienceNs = 5'000'000;  // and the time of the part at 10 GB/s
constexpr std::uint64_t kBytesPerNs = 10;

// The head of a rank's memory on its GPU; entries follow.
struct Head {
    std::array<std::uint64_t, kEntries> marks;
    std::uint64_t from_host_bytes;
    std::uint64_t from_peers_bytes;
    std::array<std::uint64_t, 64> missed;  // by peer
};
constexpr std::size_t kHeadBytes = 4096;
static_assert(sizeof(Head) <= kHeadBytes);

}  // namespace

// Says where a rank's memory is, for its peers.
struct NodeParts::Note {
    std::atomic<bool> is_there;
    std::atomic<int> readers;  // ranks that may have the memory open
    std::uint64_t entry_bytes;
    memory::GpuName name;
};

std::vector<HostPiece> pieces_within(std::span<const HostPiece> pieces, BlockPart part) {
    std::vector<HostPiece> within;
    for (const HostPiece& piece : pieces) {
        const std::uint64_t first = std::max<std::uint64_t>(part.begin, piece.at);
        const std::uint64_t last = std::min<std::uint64_t>(part.end, piece.at + piece.bytes);
        if (first < last) {
            within.push_back(
                {.at = first, .host = piece.host + (first - piece.at), .bytes = last - first});
        }
    }
    return within;
}

NodeParts::NodeParts(NodePlace place, std::size_t layer_bytes)
    : place_(std::move(place)),
      entry_bytes_(part_of_block(layer_bytes, 0, place_.ranks).size()),
      gpu_(kHeadBytes + kEntries * entry_bytes_),
      head_(sizeof(Head)),
      peers_(static_cast<std::size_t>(place_.ranks)) {
    static_assert(sizeof(Note) <= kNoteBytes);
    expects(place_.ranks <= static_cast<int>(Head{}.missed.size()) &&
                place_.notes.size() >= static_cast<std::size_t>(place_.ranks) * kNoteBytes,
            "the node's ranks have their notes");
    memory::fill_with_zeros(gpu_.span().first(kHeadBytes), memory::Stream::of_default());
    memory::Stream::of_default().wait();
    if (const auto name = memory::name_of_memory(gpu_)) {
        Note& mine = *note_of(place_.rank);
        mine.entry_bytes = entry_bytes_;
        mine.name = *name;
        mine.is_there = true;
    }
}

NodeParts::~NodeParts() {
    try {
        memory::wait_for_gpu();
    } catch (const CudaError&) {  // then nothing runs there
    }
    for (int rank = 0; rank < place_.ranks; ++rank) {
        if (Peer& peer = peers_[static_cast<std::size_t>(rank)]; peer.memory) {
            peer.memory.reset();
            --note_of(rank)->readers;
        }
    }
    Note& mine = *note_of(place_.rank);
    mine.is_there = false;
    if (mine.readers > 0) {
        new memory::GpuBuffer(std::move(gpu_));  // NOLINT: see the header
    }
}

NodeParts::Note* NodeParts::note_of(int rank) {
    auto* const note = place_.notes.span().data() + static_cast<std::size_t>(rank) * kNoteBytes;
    return reinterpret_cast<Note*>(note);
}

// Null while the peer has no memory, and if this GPU cannot read it.
const std::byte* NodeParts::memory_of(int rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    Note& note = *note_of(rank);
    if (!peer.is_tried && note.is_there) {
        ++note.readers;  // before the second look, for a peer that ends meanwhile
        if (note.is_there && note.entry_bytes == entry_bytes_) {
            peer.memory = memory::PeerMemory(memory::open_memory(note.name));
        }
        note.readers -= peer.memory ? 0 : 1;
        peer.is_tried = true;
    }
    return static_cast<const std::byte*>(peer.memory.get());
}

void NodeParts::copy_own(std::uint64_t tag, std::span<std::byte> slot,
                         std::span<const HostPiece> pieces, const memory::Stream& stream) {
    const auto set_mark = [&](unsigned entry, std::uint64_t mark) {
        std::uint64_t* const to = gpu_.as<Head>()->marks.data() + entry;
        memory::start_kernel(
            {.file = "feed/gpu_node_parts.cu", .kernel = "feed::mark", .blocks = 1, .threads = 1},
            stream, to, mark);
    };
    const BlockPart part = part_of_block(slot.size(), place_.rank, place_.ranks);
    const std::uint64_t number = ++filled_;
    const auto entry = static_cast<unsigned>(number % kEntries);
    const std::span<std::byte> own =
        gpu_.span().subspan(kHeadBytes + entry * entry_bytes_, part.size());
    set_mark(entry, 0);
    for (const HostPiece& piece : pieces_within(pieces, part)) {
        const auto* const host = reinterpret_cast<const std::byte*>(piece.host);  // NOLINT
        memory::copy_to_gpu(own.subspan(piece.at - part.begin, piece.bytes), {host, piece.bytes},
                            stream);
        copied_bytes_ += piece.bytes;
    }
    set_mark(entry, tag << kCountBits | (number & ((1U << kCountBits) - 1)));
    memory::copy_on_gpu(slot.subspan(part.begin, part.size()), own, stream);
}

void NodeParts::load(std::uint64_t tag, std::uint64_t step, std::span<std::byte> slot,
                     std::span<const HostPiece> pieces, const memory::Stream& stream) {
    expects(pieces.size() <= kMostPieces && slot.size() % kSlotAlignment == 0 && tag != 0,
            "the layer fits");
    copy_own(tag, slot, pieces, stream);
    auto* const head = gpu_.as<Head>();
    for (int i = 1; i < place_.ranks; ++i) {
        const int rank = (place_.rank + i) % place_.ranks;
        const BlockPart part = part_of_block(slot.size(), rank, place_.ranks);
        const std::vector<HostPiece> there = pieces_within(pieces, part);
        const std::byte* const peer = memory_of(rank);
        if (peer == nullptr) {
            for (const HostPiece& piece : there) {
                const auto* const host = reinterpret_cast<const std::byte*>(piece.host);  // NOLINT
                memory::copy_to_gpu(slot.subspan(piece.at, piece.bytes), {host, piece.bytes},
                                    stream);
                copied_bytes_ += piece.bytes;
            }
            continue;
        }
        HostPieces of_part;
        std::ranges::copy(there, std::begin(of_part.piece));
        of_part.count = static_cast<std::uint32_t>(there.size());
        const PartFetch fetch{
            .slot = reinterpret_cast<unsigned char*>(slot.data()),
            .entries = reinterpret_cast<const unsigned char*>(peer) + kHeadBytes,
            .marks = reinterpret_cast<const std::uint64_t*>(peer),
            .entry_bytes = entry_bytes_,
            .begin = part.begin,
            .end = part.end,
            .tag = tag,
            .step = step + 1,  // 0: never
            .patience_ns = kPatienceNs + part.size() / kBytesPerNs,
            .missed = head->missed.data() + rank,
            .from_host_bytes = reinterpret_cast<unsigned long long*>(&head->from_host_bytes),
            .from_peers_bytes = reinterpret_cast<unsigned long long*>(&head->from_peers_bytes)};
        memory::start_kernel({.file = "feed/gpu_node_parts.cu",
                              .kernel = "feed::fetch_part",
                              .blocks = part.size() == 0 ? 0 : kBlocks,
                              .threads = kThreads},
                             stream, fetch, of_part);
    }
    memory::copy_to_host(head_.span(), gpu_.span().first(sizeof(Head)), stream);
}

NodeParts::Counts NodeParts::counts() const {
    Head head{};
    std::memcpy(&head, head_.span().data(), sizeof(head));
    return {.from_host_bytes = copied_bytes_ + head.from_host_bytes,
            .from_peers_bytes = head.from_peers_bytes};
}

}  // namespace nearstep::feed

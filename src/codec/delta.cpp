// Writes and reads messages of deltas. Used by the gather of parameters.
#include "codec/delta.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"

#include <bit>
#include <cstring>

namespace nearstep::codec {

namespace {

using arith::DeltaCensus;
using shard::kTileElems;

constexpr std::array<char, 4> kMagic = {'n', 's', 'd', 'm'};

// Alignment in bytes of a message and of each payload in it.
constexpr std::size_t kAlignment = 8;
constexpr std::size_t kTileBytes = kTileElems * sizeof(std::uint16_t);
constexpr std::size_t kBitmapBytes = kBitmapWords * sizeof(std::uint64_t);

struct Header {
    std::array<char, 4> magic;
    std::uint32_t tiles;
    std::uint64_t first_tile;
    std::uint64_t bytes;
};
static_assert(sizeof(Header) == arith::kDeltaHeaderBytes);

// A tile's entry in the table.
struct DeltaEntry {
    std::uint32_t form_and_changed;  // changed x 256 + form
    std::uint32_t escaped;
    std::uint64_t digest;

    DeltaForm form() const { return static_cast<DeltaForm>(form_and_changed & 0xFFU); }
    DeltaCensus census() const { return {form_and_changed >> 8U, escaped}; }
    std::size_t bytes() const { return arith::delta_bytes(form(), census(), kTileElems); }
    bool is_possible() const {
        return (form_and_changed & 0xFFU) < kDeltaForms && census().changed <= kTileElems &&
               escaped <= census().changed;
    }
};
static_assert(sizeof(DeltaEntry) == arith::kDeltaEntryBytes);

// Offset in bytes of the end of the table.
constexpr std::size_t table_end(std::size_t tiles) {
    return sizeof(Header) + tiles * sizeof(DeltaEntry);
}

DeltaEntry entry_of(std::span<const std::byte> room, std::size_t tile) {
    DeltaEntry entry{};
    std::memcpy(&entry, room.data() + table_end(tile), sizeof entry);
    return entry;
}

using Bitmap = std::array<std::uint64_t, kBitmapWords>;

static_assert(std::endian::native == std::endian::little, "messages are written as they lie here");
static_assert(kBitmapWords * 64 == kTileElems, "a bitmap has a bit for each parameter");

std::uint64_t digest_of(const std::uint16_t* tile) {
    return xxh3({reinterpret_cast<const std::byte*>(tile), kTileBytes});
}

const std::uint64_t* words_at(const std::byte* at) {
    return reinterpret_cast<const std::uint64_t*>(at);
}

const std::uint16_t* halves_at(const std::byte* at) {
    return reinterpret_cast<const std::uint16_t*>(at);
}

std::uint16_t* halves_at(std::byte* at) { return reinterpret_cast<std::uint16_t*>(at); }

template <typename Join>
void join(const Bitmap& one, const Bitmap& other, Bitmap& out, Join join_words) {
    for (std::size_t i = 0; i < kBitmapWords; ++i) {
        out[i] = join_words(one[i], other[i]);
    }
}

// Appends a bitmap; returns the address behind it.
std::byte* append(const Bitmap& bits, std::byte* out) {
    std::memcpy(out, bits.data(), kBitmapBytes);
    return out + kBitmapBytes;
}

void write_payload(const Kernels& kernels, DeltaForm form, const DeltaCensus& census,
                   const Bitmap& plus, const Bitmap& minus, const std::uint16_t* fresh,
                   std::byte* out) {
    Bitmap changed;
    Bitmap escaped;
    join(plus, minus, changed, [](std::uint64_t a, std::uint64_t b) { return a | b; });
    join(plus, minus, escaped, [](std::uint64_t a, std::uint64_t b) { return a & b; });
    switch (form) {
        case DeltaForm::dense:
            std::memcpy(out, fresh, kTileBytes);
            return;
        case DeltaForm::bitmap:
            out = append(changed, out);
            kernels.pick_values(changed.data(), fresh, halves_at(out));
            return;
        case DeltaForm::units:
            out = append(minus, append(plus, out));
            break;
        case DeltaForm::codes:
            out = append(changed, out);
            for (const Bitmap* bits : {&plus, &minus}) {
                kernels.pack(changed.data(), bits->data(), reinterpret_cast<std::uint64_t*>(out));
                out += arith::words_of_bits(census.changed) * sizeof(std::uint64_t);
            }
            break;
        case DeltaForm::list:
            kernels.pick_indices(changed.data(), halves_at(out));
            out += census.changed * sizeof(std::uint16_t);
            kernels.pick_values(changed.data(), fresh, halves_at(out));
            return;
    }
    kernels.pick_values(escaped.data(), fresh, halves_at(out));
}

bool apply_codes(const Kernels& kernels, const DeltaEntry& entry, const std::byte* payload,
                 std::uint16_t* target) {
    const auto [changed, escaped] = entry.census();
    const std::uint64_t* mask = words_at(payload);
    if (kernels.count_both(mask, mask) != changed) {
        return false;
    }
    Bitmap plus;
    Bitmap minus;
    const std::uint64_t* packed = mask + kBitmapWords;
    kernels.unpack(mask, packed, plus.data());
    packed += arith::words_of_bits(changed);
    kernels.unpack(mask, packed, minus.data());
    packed += arith::words_of_bits(changed);
    if (kernels.count_both(plus.data(), minus.data()) != escaped) {
        return false;
    }
    kernels.apply(plus.data(), minus.data(), reinterpret_cast<const std::uint16_t*>(packed),
                  target);
    return true;
}

// Returns false, and leaves the target unchanged, if the bitmaps do not match the entry's counts.
bool apply_tile(const Kernels& kernels, const DeltaEntry& entry, const std::byte* payload,
                std::uint16_t* target) {
    const auto [changed, escaped] = entry.census();
    const std::uint64_t* first = words_at(payload);
    const std::uint64_t* second = first + kBitmapWords;
    switch (entry.form()) {
        case DeltaForm::dense:
            std::memcpy(target, payload, kTileBytes);
            return true;
        case DeltaForm::bitmap:
            if (kernels.count_both(first, first) != changed) {
                return false;
            }
            kernels.apply(first, first, halves_at(payload + kBitmapBytes), target);
            return true;
        case DeltaForm::units:
            if (kernels.count_both(first, second) != escaped) {
                return false;
            }
            kernels.apply(first, second, halves_at(payload + 2 * kBitmapBytes), target);
            return true;
        case DeltaForm::codes:
            return apply_codes(kernels, entry, payload, target);
        case DeltaForm::list:
            const std::uint16_t* indices = halves_at(payload);
            for (std::size_t i = 0; i < changed; ++i) {
                target[indices[i]] = indices[changed + i];
            }
    }
    return true;
}

}  // namespace

const char* name_of(DeltaForm form) {
    constexpr std::array kNames = {"dense", "bitmap", "units", "codes", "list"};
    return kNames.at(static_cast<std::size_t>(form));
}

DeltaTally& DeltaTally::operator+=(const DeltaTally& more) {
    for (std::size_t form = 0; form < kDeltaForms; ++form) {
        tiles.at(form) += more.tiles.at(form);
        bytes.at(form) += more.bytes.at(form);
    }
    return *this;
}

DeltaTally DeltaTally::operator-(const DeltaTally& earlier) const {
    DeltaTally difference;
    for (std::size_t form = 0; form < kDeltaForms; ++form) {
        difference.tiles.at(form) = tiles.at(form) - earlier.tiles.at(form);
        difference.bytes.at(form) = bytes.at(form) - earlier.bytes.at(form);
    }
    return difference;
}

std::size_t most_message_bytes(std::size_t tiles) { return table_end(tiles) + tiles * kTileBytes; }

std::size_t message_room_bytes(std::size_t tiles) {
    return most_message_bytes(tiles) + kDeltaSlackBytes;
}

DeltaWriter::DeltaWriter(std::span<std::byte> room, shard::TileRange tiles, const Kernels& kernels)
    : room_(room), tiles_(tiles), kernels_(&kernels), end_(table_end(tiles.size())) {
    expects(room.size() >= message_room_bytes(tiles.size()), "a message has room and slack");
    expects(reinterpret_cast<std::uintptr_t>(room.data()) % kAlignment == 0,
            "a message is aligned");
}

void DeltaWriter::add(const std::uint16_t* old, const std::uint16_t* fresh) {
    expects(next_ < tiles_.size(), "a message has as many tiles as it was made for");
    Bitmap plus;
    Bitmap minus;
    const DeltaCensus census = kernels_->compare(old, fresh, plus.data(), minus.data());
    const DeltaForm form = arith::smallest_form(census, kTileElems);
    write_payload(*kernels_, form, census, plus, minus, fresh, room_.data() + end_);

    const DeltaEntry entry{static_cast<std::uint32_t>(form) | (census.changed << 8U),
                           census.escaped, digest_of(fresh)};
    std::memcpy(room_.data() + table_end(next_), &entry, sizeof entry);

    const std::size_t end = end_ + entry.bytes();
    end_ = round_up(end, kAlignment);
    std::memset(room_.data() + end, 0, end_ - end);
    ++next_;
}

std::size_t DeltaWriter::finish() {
    expects(next_ == tiles_.size(), "a message is finished after its last tile");
    const Header header{.magic = kMagic,
                        .tiles = static_cast<std::uint32_t>(tiles_.size()),
                        .first_tile = tiles_.begin,
                        .bytes = end_};
    std::memcpy(room_.data(), &header, sizeof header);
    return end_;
}

DeltaReader::DeltaReader(std::span<const std::byte> room, shard::TileRange tiles,
                         const Kernels& kernels)
    : room_(room), tiles_(tiles), kernels_(&kernels) {
    expects(reinterpret_cast<std::uintptr_t>(room.data()) % kAlignment == 0,
            "a message is aligned");
    Header header{};
    expects(room.size() >= sizeof header + kDeltaSlackBytes, "a message has a header and slack");
    std::memcpy(&header, room.data(), sizeof header);
    bytes_ = header.bytes;
    if (header.magic != kMagic || header.tiles != tiles.size() ||
        header.first_tile != tiles.begin || bytes_ % kAlignment != 0 ||
        bytes_ < table_end(tiles.size()) || bytes_ > room.size() - kDeltaSlackBytes) {
        throw Error(text("The message for tiles ", tiles.begin, " to ", tiles.end,
                         " does not hold their parameters: start all ranks from the same "
                         "build, with ",
                         Term::resume, "."));
    }
}

void DeltaReader::add_to(DeltaTally& tally) const {
    for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
        const DeltaEntry entry = entry_of(room_, tile);
        expects(entry.is_possible(), "a form is one of those that there are");
        const auto form = static_cast<std::size_t>(entry.form());
        tally.tiles.at(form) += 1;
        tally.bytes.at(form) += sizeof entry + entry.bytes();
    }
}

std::optional<std::string> DeltaReader::apply_to(std::span<std::byte> parameters) const {
    expects(parameters.size() == tiles_.size() * kTileBytes, "a message is applied to its tiles");
    std::size_t at = table_end(tiles_.size());
    for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
        const DeltaEntry entry = entry_of(room_, tile);
        std::uint16_t* target = halves_at(parameters.data() + tile * kTileBytes);
        const bool is_right = entry.is_possible() && entry.bytes() <= bytes_ - at &&
                              apply_tile(*kernels_, entry, room_.data() + at, target) &&
                              digest_of(target) == entry.digest;
        if (!is_right) {
            return text("The parameters of tile ", tiles_.begin + tile,
                        " are not those that their owner sent: the copy of the old ones here or "
                        "the message was damaged. Start again with ",
                        Term::resume,
                        "; if it happens again, test this machine's memory and network.");
        }
        at = round_up(at + entry.bytes(), kAlignment);
    }
    return std::nullopt;
}

}  // namespace nearstep::codec

#include "codec/delta.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

#include <bit>
#include <cstring>

namespace nearstep::codec {

using shard::kTileElems;

namespace {

constexpr std::size_t kTileBytes = kTileElems * sizeof(std::uint16_t);
constexpr std::size_t kBitmapBytes = kBitmapWords * sizeof(std::uint64_t);
constexpr std::size_t kAlignment = 8;
constexpr std::array<char, 4> kMagic = {'n', 's', 'd', 'm'};

using Bitmap = std::array<std::uint64_t, kBitmapWords>;

static_assert(std::endian::native == std::endian::little, "messages are written as they lie here");
static_assert(kBitmapWords * 64 == kTileElems, "a bitmap has a bit for each parameter");

struct Header {
    std::array<char, 4> magic;
    std::uint32_t tiles;
    std::uint64_t first_tile;
    std::uint64_t bytes;
};
static_assert(sizeof(Header) == 24);

std::size_t table_end(std::size_t tiles) { return sizeof(Header) + 16 * tiles; }

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

// Writes the payload of a tile.
void write_payload(const DeltaKernels& kernels, DeltaForm form, const Bitmap& plus,
                   const Bitmap& minus, std::size_t values, const std::uint16_t* fresh,
                   std::byte* out) {
    Bitmap picked;
    switch (form) {
        case DeltaForm::dense:
            std::memcpy(out, fresh, kTileBytes);
            return;
        case DeltaForm::bitmap:
        case DeltaForm::list:
            for (std::size_t i = 0; i < kBitmapWords; ++i) {
                picked[i] = plus[i] | minus[i];
            }
            break;
        case DeltaForm::units:
            for (std::size_t i = 0; i < kBitmapWords; ++i) {
                picked[i] = plus[i] & minus[i];
            }
            break;
    }
    switch (form) {
        case DeltaForm::bitmap:
            std::memcpy(out, picked.data(), kBitmapBytes);
            out += kBitmapBytes;
            break;
        case DeltaForm::units:
            std::memcpy(out, plus.data(), kBitmapBytes);
            std::memcpy(out + kBitmapBytes, minus.data(), kBitmapBytes);
            out += 2 * kBitmapBytes;
            break;
        default:
            kernels.pick_indices(picked.data(), halves_at(out));
            out += values * sizeof(std::uint16_t);
            break;
    }
    kernels.pick_values(picked.data(), fresh, halves_at(out));
}

}  // namespace

struct DeltaReader::Entry {
    DeltaForm form;
    std::array<std::uint8_t, 3> zero;
    std::uint32_t values;
    std::uint64_t digest;
};

const char* name_of(DeltaForm form) {
    switch (form) {
        case DeltaForm::dense:
            return "dense";
        case DeltaForm::bitmap:
            return "bitmap";
        case DeltaForm::units:
            return "units";
        case DeltaForm::list:
            return "list";
    }
    throw ContractError("A form of a delta has a value that no form has.");
}

std::size_t payload_bytes(DeltaForm form, std::size_t values) {
    switch (form) {
        case DeltaForm::dense:
            return kTileBytes;
        case DeltaForm::bitmap:
            return kBitmapBytes + 2 * values;
        case DeltaForm::units:
            return 2 * kBitmapBytes + 2 * values;
        case DeltaForm::list:
            return 4 * values;
    }
    throw ContractError("A form of a delta has a value that no form has.");
}

namespace {

std::size_t values_in(DeltaForm form, const DeltaCensus& census) {
    switch (form) {
        case DeltaForm::dense:
            return kTileElems;
        case DeltaForm::units:
            return census.escaped;
        default:
            return census.changed;
    }
}

}  // namespace

DeltaForm smallest_form(const DeltaCensus& census) {
    DeltaForm best = DeltaForm::dense;
    for (const DeltaForm form : {DeltaForm::bitmap, DeltaForm::units, DeltaForm::list}) {
        if (payload_bytes(form, values_in(form, census)) <
            payload_bytes(best, values_in(best, census))) {
            best = form;
        }
    }
    return best;
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

DeltaWriter::DeltaWriter(std::span<std::byte> room, shard::TileRange tiles,
                         const DeltaKernels& kernels)
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
    const DeltaForm form = smallest_form(census);
    const std::size_t values = values_in(form, census);
    write_payload(*kernels_, form, plus, minus, values, fresh, room_.data() + end_);

    std::byte* entry = room_.data() + table_end(next_);
    const std::uint64_t facts =
        static_cast<std::uint64_t>(form) | (static_cast<std::uint64_t>(values) << 32U);
    const std::uint64_t digest = digest_of(fresh);
    std::memcpy(entry, &facts, sizeof facts);
    std::memcpy(entry + sizeof facts, &digest, sizeof digest);

    const std::size_t end = end_ + payload_bytes(form, values);
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
                         const DeltaKernels& kernels)
    : room_(room), tiles_(tiles), kernels_(&kernels) {
    static_assert(sizeof(Entry) == 16);
    expects(reinterpret_cast<std::uintptr_t>(room.data()) % kAlignment == 0,
            "a message is aligned");
    Header header{};
    expects(room.size() >= sizeof header + kDeltaSlackBytes, "a message has a header and slack");
    std::memcpy(&header, room.data(), sizeof header);
    bytes_ = header.bytes;
    if (header.magic != kMagic || header.tiles != tiles.size() ||
        header.first_tile != tiles.begin || bytes_ % kAlignment != 0 ||
        bytes_ < table_end(tiles.size()) || bytes_ > room.size() - kDeltaSlackBytes) {
        throw Error(text("What came for tiles ", tiles.begin, " to ", tiles.end,
                         " is not a message of their parameters: start all ranks from the same "
                         "build, with --resume."));
    }
}

DeltaReader::Entry DeltaReader::entry_of(std::size_t tile) const {
    Entry entry{};
    std::memcpy(&entry, room_.data() + table_end(tile), sizeof entry);
    return entry;
}

void DeltaReader::add_to(DeltaTally& tally) const {
    for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
        const Entry entry = entry_of(tile);
        const auto form = static_cast<std::size_t>(entry.form);
        expects(form < kDeltaForms, "a form is one of the four");
        tally.tiles.at(form) += 1;
        tally.bytes.at(form) += sizeof entry + payload_bytes(entry.form, entry.values);
    }
}

// Whether the kernels read no more values than there are.
bool DeltaReader::is_consistent(const Entry& entry, const std::byte* payload) const {
    switch (entry.form) {
        case DeltaForm::bitmap:
            return kernels_->count_both(words_at(payload), words_at(payload)) == entry.values;
        case DeltaForm::units:
            return kernels_->count_both(words_at(payload), words_at(payload + kBitmapBytes)) ==
                   entry.values;
        default:
            return true;
    }
}

void DeltaReader::apply_tile(const Entry& entry, const std::byte* payload,
                             std::uint16_t* target) const {
    switch (entry.form) {
        case DeltaForm::dense:
            std::memcpy(target, payload, kTileBytes);
            return;
        case DeltaForm::bitmap:
            return kernels_->apply(words_at(payload), words_at(payload),
                                   halves_at(payload + kBitmapBytes), target);
        case DeltaForm::units:
            return kernels_->apply(words_at(payload), words_at(payload + kBitmapBytes),
                                   halves_at(payload + 2 * kBitmapBytes), target);
        case DeltaForm::list:
            const std::uint16_t* indices = halves_at(payload);
            for (std::size_t i = 0; i < entry.values; ++i) {
                target[indices[i]] = indices[entry.values + i];
            }
    }
}

std::optional<std::string> DeltaReader::apply_to(std::span<std::byte> parameters) const {
    expects(parameters.size() == tiles_.size() * kTileBytes, "a message is applied to its tiles");
    std::size_t at = table_end(tiles_.size());
    for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
        const Entry entry = entry_of(tile);
        const std::byte* payload = room_.data() + at;
        std::uint16_t* target = halves_at(parameters.data() + tile * kTileBytes);
        bool is_right =
            static_cast<std::size_t>(entry.form) < kDeltaForms && entry.values <= kTileElems &&
            payload_bytes(entry.form, entry.values) <= bytes_ - at && is_consistent(entry, payload);
        if (is_right) {
            apply_tile(entry, payload, target);
            is_right = digest_of(target) == entry.digest;
        }
        if (!is_right) {
            return text("The parameters of tile ", tiles_.begin + tile,
                        " are not those that their owner sent: the copy of the old ones here or "
                        "the message was damaged. Start again with --resume; if it happens again, "
                        "test this machine's memory and network.");
        }
        at = round_up(at + payload_bytes(entry.form, entry.values), kAlignment);
    }
    return std::nullopt;
}

}  // namespace nearstep::codec

// Writes and reads a device's log. Used by StateVolume.
#include "csd/gradient_log.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/packed.hpp"
#include "base/units.hpp"
#include "base/wording.hpp"
#include "csd/state_format.hpp"
#include "csd/update_engine.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace nearstep::csd {

namespace {

// The first page is a store::SubgroupHeader for the directory, which is the second.
constexpr std::size_t kPayloadsAt = 2 * store::kPageBytes;
// Room for the facts: of 256 groups and more, and of each tile of the codec with the smallest
// payload.
constexpr std::size_t kRoomOfFacts = 16 * KiB;
constexpr std::size_t kPayloadsPerFacts = 128;  // bytes
constexpr std::size_t kMostSources = std::size_t{1} << 20U;
constexpr std::size_t kMostStride = std::size_t{1} << 20U;

}  // namespace

// The sizes and the digest of what the log holds beside the payloads. Digests are XXH3.
struct GradientLog::Directory {
    std::uint64_t payload_bytes = 0;  // in the file, from kPayloadsAt on
    std::uint64_t fact_bytes = 0;     // after them, in whole pages
    std::uint64_t facts_digest = 0;
};

// The facts about an update, packed (base/packed.hpp).
struct GradientLog::Facts {
    // UpdateScalars without gaps between its members.
    struct GroupScalars {
        std::array<float, 10> values = {};
        std::uint32_t optimizer = 0;
        std::uint32_t is_skipped = 0;
    };

    struct GroupEnd {
        std::uint64_t end = 0;
        std::uint64_t group = 0;
    };

    std::uint64_t tiles = 0;
    std::uint64_t sources = 0;
    std::uint64_t stride = 0;
    std::uint64_t random_key = 0;
    double keep = 0;
    std::uint32_t dtype = 0;
    std::uint32_t rounding = 0;
    std::string codec = {};
    std::vector<GroupScalars> groups = {};
    std::vector<GroupEnd> runs = {};
    std::vector<std::uint64_t> digests = {};  // of each tile's payloads

    static GroupScalars stored(const UpdateScalars& of, bool is_skipped) {
        return {.values = {of.gradient_scale, of.beta1, of.one_minus_beta1, of.beta2,
                           of.one_minus_beta2, of.epsilon, of.decay_factor, of.gradient_decay,
                           of.step_size, of.root_scale},
                .optimizer = static_cast<std::uint32_t>(of.optimizer),
                .is_skipped = is_skipped ? 1U : 0U};
    }

    static UpdateScalars restored(const GroupScalars& of, std::uint64_t random_key) {
        expects(of.optimizer <= static_cast<std::uint32_t>(arith::kLastOptimizer),
                "the optimizer is one of those there are");
        const auto& v = of.values;
        return {.gradient_scale = v[0],
                .beta1 = v[1],
                .one_minus_beta1 = v[2],
                .beta2 = v[3],
                .one_minus_beta2 = v[4],
                .epsilon = v[5],
                .decay_factor = v[6],
                .gradient_decay = v[7],
                .step_size = v[8],
                .root_scale = v[9],
                .optimizer = static_cast<arith::Optimizer>(of.optimizer),
                .random_key = random_key};
    }

    template <typename Archive>
    friend void list(Archive& archive, Facts& one) {
        archive(one.tiles, one.sources, one.stride, one.random_key, one.keep, one.dtype,
                one.rounding, one.codec, one.groups, one.runs, one.digests);
    }

    // Throws ContractError if no run has such facts.
    void expect_possible(std::size_t of_device, shard::ElementRange range) const {
        expects(tiles == of_device && digests.size() == tiles, "the log has the device's tiles");
        expects(sources > 0 && sources <= kMostSources && stride > 0 && stride <= kMostStride,
                "a tile has payloads of a possible size");
        expects(!groups.empty() && groups.size() <= kMostGroups, "an update has 1 to 256 groups");
        expects(dtype <= static_cast<std::uint32_t>(Dtype::fp16) &&
                    rounding <= static_cast<std::uint32_t>(arith::Rounding::stochastic),
                "a codec's formats are known");
        expects(!runs.empty() && runs.back().end >= range.end, "each element has a group");
    }
    std::size_t payload_bytes() const {
        return round_up(tiles * sources * stride, store::kPageBytes);
    }
};

LoggedUpdate::LoggedUpdate(const GradientLog& log, const StepScalars& scalars, GroupMap groups,
                           std::unique_ptr<codec::Codec> codec, Payloads payloads)
    : log_(&log),
      scalars_(scalars),
      groups_(std::move(groups)),
      codec_(std::move(codec)),
      payloads_(std::move(payloads)) {}

// Reads the payloads of consecutive tiles, which are the first ones in what it returns.
PayloadMemory LoggedUpdate::read(std::size_t first_tile, std::size_t tiles) const {
    const std::size_t bytes_of_tile = payloads_.sources * payloads_.stride;
    const std::size_t begin = kPayloadsAt + first_tile * bytes_of_tile;
    const std::size_t page = begin / store::kPageBytes * store::kPageBytes;
    memory::Buffer pages(round_up(begin + tiles * bytes_of_tile - page, store::kPageBytes));
    log_->read_into(pages.span(), page);
    PayloadMemory found(*codec_, payloads_.stride, tiles, payloads_.sources,
                        PayloadMemory::Place::logged);
    expects(found.stride() == payloads_.stride, "a payload's place is a multiple of 64 bytes");
    found.lie_in(std::move(pages), begin - page);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        if (xxh3(found.of_tile(tile)) != payloads_.digests.at(first_tile + tile)) {
            log_->refuse("its gradients are damaged (checksum mismatch)");
        }
    }
    return found;
}

void LoggedUpdate::apply(const StateLayout& layout, const std::vector<shard::Subgroup>& subgroups,
                         std::size_t subgroup, std::span<std::byte> payload) const {
    alignas(64) std::array<float, arith::kPieceElems> piece;   // NOLINT: a decoder fills it
    alignas(64) std::array<float, arith::kPieceElems> unread;  // NOLINT: new parameters go nowhere
    const UpdateEngine& engine = best_engine();
    const std::size_t tiles = layout.tiles_in(subgroup);
    const PayloadMemory payloads = read(layout.first_tile(subgroup), tiles);
    for (std::size_t tile = 0; tile < tiles; ++tile) {
        const std::size_t number = subgroups[subgroup].tiles.begin + tile;
        const StatePointers state = state_of_tile(layout.format(), payload, tiles, tile);
        UpdateRun run;
        run.format = layout.format();
        run.gradient_dtype = payloads.piece_dtype();
        run.key = arith::tile_key(scalars_.random_key, number);
        run.count = arith::kPieceElems;
        run.parameters = unread.data();
        for (std::size_t first = 0; first < shard::kTileElems; first += run.count) {
            run.state = state_from(layout.format(), state, first);
            run.first = static_cast<std::uint32_t>(first);
            run.gradient = payloads.piece_of(tile, first, piece);
            csd::update(engine, scalars_, groups_, number * shard::kTileElems + first, run);
        }
    }
}

GradientLog::GradientLog(std::string path, store::Storage* storage, Term key)
    : file_(std::move(path), storage, key), has_storage_(storage != nullptr) {}

std::size_t GradientLog::file_bytes(std::size_t payload_bytes) {
    return kPayloadsAt + round_up(payload_bytes, store::kPageBytes) +
           round_up(kRoomOfFacts + payload_bytes / kPayloadsPerFacts, store::kPageBytes);
}

LoggedState logged_state(const StateLayout& layout, std::size_t payload_bytes, std::size_t logs) {
    return {.subgroups = layout.subgroups(),
            .place_bytes = layout.most_extent_bytes(),
            .log_bytes = GradientLog::file_bytes(payload_bytes),
            .logs = logs};
}

void GradientLog::reserve(std::size_t payload_bytes) { file_.reserve(file_bytes(payload_bytes)); }

void GradientLog::remove() { ::unlink(file_.path().c_str()); }

bool GradientLog::is_mapped() const { return file_.lies_in_memory() && !has_storage_; }

void GradientLog::hold(PayloadMemory& payloads) {
    file_.claim();
    if (is_mapped()) {
        payloads.lie_in(file_.map(file_bytes(payloads.bytes())), kPayloadsAt);
        holds_payloads_ = true;
    } else {
        payloads.lie_in(memory::Buffer(round_up(payloads.bytes(), store::kPageBytes)), 0);
    }
}

void GradientLog::read_into(std::span<std::byte> pages, std::size_t offset) const {
    file_.transfer({store::Direction::read,
                    {{pages.data(), pages.size()}},
                    static_cast<std::int64_t>(offset)});
}

// Requests have the type that reads use; writing does not change the memory.
void GradientLog::write(std::span<const std::byte> pages, std::size_t offset) {
    file_.transfer({store::Direction::write,
                    {{const_cast<std::byte*>(pages.data()), pages.size()}},
                    static_cast<std::int64_t>(offset)});
}

std::size_t GradientLog::put(const store::SubgroupHeader& header, const PayloadMemory& payloads,
                             const StepScalars& scalars, const GroupMap& groups,
                             shard::ElementRange range) {
    const codec::CodecSettings& codec = payloads.codec().settings();
    Facts facts{.tiles = payloads.tiles(),
                .sources = payloads.sources(),
                .stride = payloads.stride(),
                .random_key = scalars.random_key,
                .keep = codec.keep,
                .dtype = static_cast<std::uint32_t>(codec.dtype),
                .rounding = static_cast<std::uint32_t>(codec.rounding),
                .codec = codec.name};
    for (std::size_t group = 0; group < groups.groups(); ++group) {
        facts.groups.push_back(
            Facts::stored(scalars.of_group.at(group), scalars.is_skipped.at(group)));
    }
    for (const GroupRun& run : groups.runs_in(range.begin, range.end)) {
        facts.runs.push_back({run.end, run.group});
    }
    facts.digests.assign(payloads.digests().begin(), payloads.digests().end());
    const std::string bytes = packed(facts);
    memory::Buffer fact_pages(round_up(bytes.size(), store::kPageBytes));
    std::memcpy(fact_pages.span().data(), bytes.data(), bytes.size());
    const Directory directory{.payload_bytes = facts.payload_bytes(),
                              .fact_bytes = bytes.size(),
                              .facts_digest = xxh3(std::as_bytes(std::span(bytes)))};
    memory::Buffer head(kPayloadsAt);
    std::memcpy(head.span().data() + store::kHeaderBytes, &directory, sizeof directory);
    store::seal(header, head.span());
    if (!holds_payloads_) {
        write(payloads.pages(), kPayloadsAt);
    }
    write(fact_pages.span(), kPayloadsAt + directory.payload_bytes);
    write(head.span(), 0);
    return kPayloadsAt + directory.payload_bytes + fact_pages.size();
}

void GradientLog::refuse(const std::string& fault) const {
    throw DamageError(
        text("The log \"", file_.path(),
             "\", which repeats a step whose state is missing, cannot be used: ", fault,
             ". Start again with ", Term::resume,
             "; if it happens again, go on from a checkpoint with ", Term::from, "."));
}

GradientLog::Facts GradientLog::read_facts(const Directory& directory) const {
    const std::size_t held = file_.held_bytes() - kPayloadsAt;
    if (directory.payload_bytes % store::kPageBytes != 0 || directory.payload_bytes > held ||
        directory.fact_bytes > held - directory.payload_bytes) {
        refuse("its directory is not one that a run writes");
    }
    memory::Buffer pages(round_up(directory.fact_bytes, store::kPageBytes));
    read_into(pages.span(), kPayloadsAt + directory.payload_bytes);
    const std::span<const std::byte> bytes = pages.span().first(directory.fact_bytes);
    if (xxh3(bytes) != directory.facts_digest) {
        refuse("its facts are damaged (checksum mismatch)");
    }
    Facts facts;
    unpack({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, facts);
    return facts;
}

std::optional<LoggedUpdate> GradientLog::read(const store::SubgroupHeader& header,
                                              std::size_t tiles, shard::ElementRange range) {
    if (file_.held_bytes() < kPayloadsAt) {
        return std::nullopt;
    }
    memory::Buffer head(kPayloadsAt);
    read_into(head.span(), 0);
    if (store::find_fault(header, head.span())) {
        return std::nullopt;
    }
    Directory directory;
    std::memcpy(&directory, head.span().data() + store::kHeaderBytes, sizeof directory);
    try {
        const Facts facts = read_facts(directory);
        facts.expect_possible(tiles, range);
        expects(facts.payload_bytes() == directory.payload_bytes, "the directory has all payloads");
        StepScalars scalars;
        scalars.random_key = facts.random_key;
        for (std::size_t group = 0; group < facts.groups.size(); ++group) {
            scalars.of_group.at(group) = Facts::restored(facts.groups[group], facts.random_key);
            scalars.is_skipped.at(group) = facts.groups[group].is_skipped != 0;
        }
        std::vector<GroupRun> runs;
        for (const Facts::GroupEnd& run : facts.runs) {
            expects(run.group < facts.groups.size(), "each group has its scalars");
            runs.push_back({run.end, run.group});
        }
        std::unique_ptr<codec::Codec> codec =
            codec::make_codec({.name = facts.codec,
                               .keep = facts.keep,
                               .dtype = static_cast<Dtype>(facts.dtype),
                               .rounding = static_cast<arith::Rounding>(facts.rounding)});
        expects(facts.stride >= codec->payload_bytes() && facts.stride % 64 == 0,
                "a payload has its place");
        return LoggedUpdate(*this, scalars, GroupMap(runs), std::move(codec),
                            {facts.stride, facts.sources, facts.digests});
    } catch (const ContractError&) {
        refuse("it holds what no run writes");
    } catch (const ConfigError&) {
        refuse("another version of nearstep wrote its gradients");
    }
}

}  // namespace nearstep::csd

// A device's log of gradients, whose checksums are unchanged or corrected.
#include "base/digest.hpp"
#include "base/error.hpp"
#include "csd/gradient_log.hpp"
#include "csd/state_format.hpp"
#include "fuzz.hpp"

#include <fstream>
#include <iterator>

namespace nearstep::fuzz {

namespace {

using shard::kTileElems;

constexpr std::size_t kPage = store::kHeaderBytes;
constexpr std::size_t kTiles = 2;
constexpr store::SubgroupHeader kHeader = {.layout = 77, .subgroup = 3, .generation = 12};
constexpr shard::ElementRange kRange = {0, kTiles* kTileElems};

std::string path() { return scratch_folder() + "/log"; }

std::string make_sample() {
    const auto codec = codec::make_codec({.name = "topk", .keep = 0.001});
    csd::PayloadMemory payloads(*codec, 0, kTiles, 1, csd::PayloadMemory::Place::logged);
    csd::GradientLog log(path());
    log.hold(payloads);
    std::vector<std::byte> payload(codec->payload_bytes());
    const std::vector<std::span<const std::byte>> of_tile = {payload};
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
        codec->encode(std::vector<float>(kTileElems, 1.0F), payload);
        payloads.put(tile, of_tile);
    }
    log.put(kHeader, payloads, arith::UpdateScalars{}, csd::GroupMap(), kRange);
    std::ifstream file(path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    log.remove();
    return bytes;
}

// Corrects the checksums of the facts and of the directory.
void mend(std::span<std::byte> file) {
    const auto number_at = [&](std::size_t at) {
        std::uint64_t value = 0;
        std::memcpy(&value, file.data() + at, sizeof value);
        return value;
    };
    const std::uint64_t payload_bytes = number_at(kPage);
    const std::uint64_t fact_bytes = number_at(kPage + 8);
    if (payload_bytes <= file.size() - 2 * kPage &&
        fact_bytes <= file.size() - 2 * kPage - payload_bytes) {
        const std::uint64_t digest = xxh3(file.subspan(2 * kPage + payload_bytes, fact_bytes));
        std::memcpy(file.data() + kPage + 16, &digest, sizeof digest);
    }
    store::seal(kHeader, file.first(2 * kPage));
}

}  // namespace

std::vector<std::string> seeds() {
    return {Output().number(std::uint8_t{1}).number(std::uint32_t{2 * kPage}),
            Output().number(std::uint8_t{0})};
}

void read(Bytes bytes) {
    static const std::string sample = make_sample();
    Input input(bytes);
    const bool is_mended = input.flag();
    std::vector<std::byte> file(sample.size());
    std::memcpy(file.data(), sample.data(), sample.size());
    edit(input, file);
    if (is_mended) {
        mend(file);
    }
    write_file(path(), {reinterpret_cast<const char*>(file.data()), file.size()});
    csd::GradientLog log(path());
    const auto update = log.read(kHeader, kTiles, kRange);
    if (update) {
        const std::vector<shard::Subgroup> subgroups = {{0, 0, {0, kTiles}}};
        const csd::StateLayout layout(subgroups, csd::StateFormat::compact, false);
        std::vector<std::byte> state(csd::state_bytes(csd::StateFormat::compact, kTiles));
        update->apply(layout, subgroups, 0, state);
    }
}

}  // namespace nearstep::fuzz

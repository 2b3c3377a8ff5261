// The cycle model: processes, streams and memory channels of the updater as a network of tokens.
// Used by print_cycles.cpp.
#include "fpga/model/updater_model.hpp"

#include "base/error.hpp"
#include "fpga/kernel/encode_delta.hpp"
#include "fpga/kernel/job.hpp"
#include "fpga/kernel/sum_gradient.hpp"
#include "fpga/kernel/xxh3.hpp"
#include "fpga/model/trace.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

namespace nearstep::fpga {

namespace {

// Cycles to drain a loop's pipeline or a chain of multiplications. These are estimates.
constexpr std::uint64_t kXxhEndCycles = 18;     // between two blocks
constexpr std::uint64_t kXxhDigestCycles = 40;  // after the last

Job job_of(const UpdaterSettings& settings) {
    Job job = {};
    job.scalars.optimizer = settings.optimizer;
    job.format = settings.format;
    job.codec = settings.codec;
    job.delivery = settings.delivery;
    job.parameter_dtype = Dtype::bf16;
    job.tiles = 1;
    job.sources = settings.sources;
    job.kept = is_topk(settings.codec)
                   ? static_cast<std::uint32_t>(std::ceil(settings.keep * kTileElems))
                   : 0;
    return job;
}

// "1" and "2", as in the names of arguments and processes.
std::vector<std::string> used_moments(const Job& job) {
    std::vector<std::string> used;
    for (const auto& [name, is_used] :
         {std::pair("1", uses_moment1(job)), std::pair("2", uses_moment2(job))}) {
        if (is_used) {
            used.emplace_back(name);
        }
    }
    return used;
}

bool has_deltas(const Job& job) { return job.delivery == ParameterDelivery::deltas; }

// Words of a tile's stored state.
std::uint64_t state_words(const Job& job) {
    return tile_words(master_bits(job)) + 2ULL * tile_words(moment_bits(job)) +
           (has_codes(job) ? 2ULL * kTileScaleWords : 0);
}

// Builds the network for a number of tiles: the processes of update_subgroup.hpp in their order.
class UpdaterNetwork {
public:
    UpdaterNetwork(const UpdaterSettings& settings, Memory memory, std::uint64_t tiles)
        : settings_(settings), job_(job_of(settings)), tiles_(tiles), network_(memory) {
        add_channels();
        add_gradient();
        add_lanes();
        add_measure();
        add_state_out();
        add_parameters();
    }

    TokenNetwork& network() { return network_; }

private:
    std::uint64_t lanes() const { return settings_.lanes; }
    std::uint64_t tile_cycles() const { return kTileElems / lanes(); }
    // Cycles in which the lanes consume a word.
    std::uint64_t cycles_per_word(std::uint64_t bits) const { return kWordBits / bits / lanes(); }
    Fifo* fifo(const std::string& name, std::uint64_t depth = kShallowDepth) {
        auto& found = fifos_[name];
        if (found == nullptr) {
            found = network_.add_fifo(depth);
        }
        return found;
    }
    void add(std::string name, std::uint64_t steps_per_tile, std::vector<Tap> reads,
             std::vector<Tap> writes, std::function<std::uint64_t(std::uint64_t)> extra = {}) {
        network_.add({.name = std::move(name),
                      .steps = steps_per_tile * tiles_,
                      .reads = std::move(reads),
                      .writes = std::move(writes),
                      .extra = std::move(extra)});
    }
    // A process that forwards words unchanged.
    void add_mover(const std::string& name, std::uint64_t words_per_tile, Fifo* from, Fifo* to) {
        if (words_per_tile > 0) {
            add(name, words_per_tile, {{from, always}}, {{to, always}});
        }
    }

    void add_channels();
    void add_gradient();
    void add_decoder();
    void add_lanes();
    void add_measure();
    void add_moment(const std::string& number);
    void add_state_out();
    void add_parameters();
    void add_deltas();

    UpdaterSettings settings_;
    Job job_;
    std::vector<std::string> moments_ = used_moments(job_);
    std::uint64_t tiles_;
    TokenNetwork network_;
    std::map<std::string, Fifo*> fifos_;
};

// Adds each channel with its port's FIFO for outstanding bursts, and the processes that read it.
void UpdaterNetwork::add_channels() {
    for (Channel channel : channels_of(settings_)) {
        channel.fifo = fifo(channel.name, std::uint64_t{kBurstWords} * kBurstsUnderway);
        channel.words *= tiles_;
        network_.add(channel);
    }
    add_mover("read_master", tile_words(master_bits(job_)), fifo("master_in"), fifo("masters"));
    for (const std::string& number : moments_) {
        add_mover("read_moment" + number, tile_words(moment_bits(job_)),
                  fifo("moment" + number + "_in"), fifo("moments" + number));
    }
    if (has_codes(job_)) {
        // Reads the words of a tile's scales, then passes on one block's scales per cycle.
        const std::uint64_t words = kTileScaleWords * moments_.size();
        const std::uint64_t steps = words + kTileBlocks;
        add("read_scales", steps,
            {{fifo("scales_in"), [=](std::uint64_t step) { return step % steps < words; }}},
            {{fifo("scales"), [=](std::uint64_t step) { return step % steps >= words; }}});
    }
    add_mover("read_heads", std::uint64_t{job_.sources} * head_words(job_), fifo("payload_heads"),
              fifo("heads"));
    add_mover("read_tails", std::uint64_t{job_.sources} * tail_words(job_), fifo("payload_tails"),
              fifo("tails"));
}

void UpdaterNetwork::add_decoder() {
    const std::uint64_t sources = job_.sources;
    Fifo* decoded = fifo("decoded");
    if (is_topk(job_.codec)) {
        const std::uint64_t kept = job_.kept;
        const std::uint64_t first = kept % kWordHalves;
        add("pair_entries", kept * sources,
            {{fifo("heads"), [=](std::uint64_t i) { return i % kept % kWordHalves == 0; }},
             {fifo("tails"),
              [=](std::uint64_t i) {
                  return i % kept == 0 || (first + i % kept) % kWordHalves == 0;
              }}},
            {{fifo("entries"), always}});
        const auto trace = std::make_shared<std::vector<bool>>(merge_trace(job_.kept));
        const auto gives = [trace](std::uint64_t i) { return (*trace)[i % trace->size()]; };
        add("decode_payloads", trace->size() * sources,
            {{fifo("entries"), [gives](std::uint64_t i) { return !gives(i); }}},
            {{decoded, gives}});
        return;
    }
    if (is_dense(job_.codec)) {
        add("decode_payloads", kTileGroups * sources,
            {{fifo("heads"), first_of(job_.codec == GradientCodec::dense_fp32 ? 1 : 2)}},
            {{decoded, always}});
        return;
    }
    add("decode_payloads", kTileGroups * sources,
        {{fifo("heads"), first_of(std::uint64_t{blocks_in_word(job_.codec)} * kBlockGroups)},
         {fifo("tails"), first_of(kTailGroups)}},
        {{decoded, always}});
}

void UpdaterNetwork::add_gradient() {
    add_decoder();
    const std::uint64_t before_last = std::uint64_t{kTileGroups} * (job_.sources - 1);
    const std::uint64_t all = std::uint64_t{kTileGroups} * job_.sources;
    const auto is_complete = [=](std::uint64_t i) { return i % all >= before_last; };
    add("sum_payloads", all, {{fifo("decoded"), always}},
        {{fifo("gradients", settings_.sum_depth), is_complete}});
}

void UpdaterNetwork::add_measure() {
    const std::uint64_t cycles = tile_cycles();
    const std::uint64_t steps = cycles + kSquareSums;
    const std::uint64_t per_word = cycles_per_word(32);
    add("measure_gradient", steps,
        {{fifo("measured"),
          [=](std::uint64_t i) { return i % steps < cycles && i % steps % per_word == 0; }}},
        {{fifo("squares"), [=](std::uint64_t i) { return i % steps >= cycles; }}});
    add("add_squares", kSquareSums, {{fifo("squares"), always}}, {},
        [](std::uint64_t) { return kDoubleAddCycles - 1; });
}

void UpdaterNetwork::add_lanes() {
    const std::uint64_t of_master = cycles_per_word(master_bits(job_));
    const std::uint64_t of_moment = cycles_per_word(moment_bits(job_));
    const std::uint64_t of_parameter = cycles_per_word(parameter_bits(job_));
    std::vector<Tap> reads = {
        {fifo("masters"), first_of(of_master)},
        {fifo("gradients", settings_.sum_depth), first_of(cycles_per_word(32))}};
    std::vector<Tap> writes = {{fifo("new_masters"), last_of(of_master)},
                               {fifo("fresh"), last_of(of_parameter)},
                               {fifo("measured"), first_of(cycles_per_word(32))}};
    for (const std::string& number : moments_) {
        reads.push_back({fifo("moments" + number), first_of(of_moment)});
        writes.push_back({fifo("wide" + number), always});
    }
    if (has_codes(job_)) {
        reads.push_back({fifo("scales"), first_of(kBlockElems / lanes())});
    }
    if (has_deltas(job_)) {
        writes.push_back({fifo("old"), last_of(of_parameter)});
    }
    add("update_tiles", tile_cycles(), std::move(reads), std::move(writes));
}

void UpdaterNetwork::add_moment(const std::string& number) {
    add_mover("write_moment" + number, tile_words(moment_bits(job_)), fifo("new_moments" + number),
              fifo("moment" + number + "_out"));
    const std::string name = "encode_moment" + number;
    const std::uint64_t of_word = cycles_per_word(moment_bits(job_));
    if (!has_codes(job_)) {
        add(name, tile_cycles(), {{fifo("wide" + number), always}},
            {{fifo("new_moments" + number), last_of(of_word)}});
        return;
    }
    const std::uint64_t block = kBlockElems / lanes();
    const std::uint64_t cycles = tile_cycles();
    const std::uint64_t steps = cycles + block;
    add(name, steps, {{fifo("wide" + number), [=](std::uint64_t i) { return i % steps < cycles; }}},
        {{fifo("new_moments" + number),
          [=](std::uint64_t i) { return i % steps >= block && i % of_word == of_word - 1; }},
         {fifo("scales" + number, kScaleDepth),
          [=](std::uint64_t i) { return i % steps >= block && i % steps % block == 0; }}});
}

void UpdaterNetwork::add_state_out() {
    add_mover("write_master", tile_words(master_bits(job_)), fifo("new_masters"),
              fifo("master_out"));
    const std::uint64_t steps = kTileBlocks * moments_.size();
    std::vector<Tap> reads;
    for (std::uint64_t which = 0; which < moments_.size(); ++which) {
        add_moment(moments_[which]);
        reads.push_back({fifo("scales" + moments_[which], kScaleDepth),
                         [=](std::uint64_t i) { return i % steps / kTileBlocks == which; }});
    }
    if (has_codes(job_)) {
        add("write_scales", steps, std::move(reads), {{fifo("scales_out"), last_of(kWordUnits)}});
    }
}

void UpdaterNetwork::add_parameters() {
    const std::uint64_t words = tile_words(parameter_bits(job_));
    const auto ends_block = last_of(kXxhBlockStripes);
    const auto ends_tile = last_of(words);
    add("digest_parameters", words, {{fifo("fresh"), always}},
        {{fifo(has_deltas(job_) ? "compared" : "plain"), always}}, [=](std::uint64_t i) {
            return (ends_block(i) ? kXxhEndCycles : 0) + (ends_tile(i) ? kXxhDigestCycles : 0);
        });
    if (has_deltas(job_)) {
        add_deltas();
    } else {
        add_mover("write_parameters", words, fifo("plain"), fifo("parameters"));
    }
}

void UpdaterNetwork::add_deltas() {
    const auto trace = std::make_shared<DeltaTrace>(
        delta_trace(delta_marks(settings_.changed, settings_.escaped)));
    const auto does = [trace](DeltaStep what) {
        return [trace, what](std::uint64_t i) {
            return trace->steps[i % trace->steps.size()].test(static_cast<std::size_t>(what));
        };
    };
    Fifo* waiting = fifo("waiting", settings_.fresh_depth);
    Fifo* bitmaps = fifo("bitmaps", kBitmapDepth);
    add("compare_parameters", kTileWordsOfHalves,
        {{fifo("old"), always}, {fifo("compared"), always}},
        {{waiting, always},
         {bitmaps, last_of(2)},
         {fifo("censuses"), last_of(kTileWordsOfHalves)}});
    add("encode_deltas", trace->steps.size(),
        {{bitmaps, does(DeltaStep::reads_bitmaps)},
         {fifo("censuses"), does(DeltaStep::reads_census)},
         {waiting, does(DeltaStep::reads_parameters)}},
        {{fifo("quads"), does(DeltaStep::writes_quad)}});
    add("pack_message", trace->quads, {{fifo("quads"), always}},
        {{fifo("message"), last_of(kWordQuads)}});
    // The last, incomplete word is written when the message ends.
    const std::uint64_t words = trace->quads * tiles_ / kWordQuads;
    network_.add({.name = "write_parameters",
                  .steps = words,
                  .reads = {{fifo("message"), always}},
                  .writes = {{fifo("parameters"), always}}});
}

// All other DRAM traffic: state from and to flash, the digests of both, payloads in and parameters
// out.
std::uint64_t other_words(const UpdaterSettings& settings) {
    const Job job = job_of(settings);
    std::uint64_t words = 4 * state_words(job);
    for (const Channel& channel : channels_of(settings)) {
        const bool crosses_host_link = channel.name == "payload_heads" ||
                                       channel.name == "payload_tails" ||
                                       channel.name == "parameters";
        words += crosses_host_link ? channel.words : 0;
    }
    return words;
}

TokenNetwork run_network(const UpdaterSettings& settings, const CardRates& card,
                         StepTraffic traffic, std::uint64_t tiles, std::uint64_t& cycles) {
    Memory memory{.burst_words = kBurstWords};
    if (traffic != StepTraffic::none) {
        memory.words_per_cycle =
            card.dram_bytes_per_s * card.dram_share / card.clock_hz / kWordBytes;
    }
    UpdaterNetwork updater(settings, memory, tiles);
    if (traffic == StepTraffic::everything) {
        updater.network().add(Channel{.name = "others", .words = other_words(settings) * tiles});
    }
    cycles = updater.network().run();
    return std::move(updater.network());
}

double bytes_per_parameter(std::uint64_t words_per_tile) {
    return static_cast<double>(words_per_tile * kWordBytes) / kTileElems;
}

}  // namespace

std::vector<Channel> channels_of(const UpdaterSettings& settings) {
    const Job job = job_of(settings);
    const std::uint64_t master = tile_words(master_bits(job));
    const std::uint64_t moment = tile_words(moment_bits(job));
    const std::vector<std::string> moments = used_moments(job);
    const std::uint64_t scales = has_codes(job) ? kTileScaleWords * moments.size() : 0;
    const std::uint64_t parameters =
        has_deltas(job)
            ? delta_trace(delta_marks(settings.changed, settings.escaped)).quads / kWordQuads
            : tile_words(parameter_bits(job));
    const std::uint64_t sources = job.sources;
    std::vector<Channel> channels;
    const auto add = [&](const std::string& name, bool is_read, std::uint64_t words) {
        if (words > 0) {
            channels.push_back({.name = name, .is_read = is_read, .words = words});
        }
    };
    const auto add_both = [&](const std::string& array, std::uint64_t words) {
        add(array + "_in", true, words);
        add(array + "_out", false, words);
    };
    add_both("master", master);
    for (const std::string& number : moments) {
        add_both("moment" + number, moment);
    }
    add_both("scales", scales);
    add("payload_heads", true, sources * head_words(job));
    add("payload_tails", true, sources * tail_words(job));
    add("parameters", false, parameters);
    return channels;
}

UpdaterRun run_updater(const UpdaterSettings& settings, const CardRates& card,
                       StepTraffic traffic) {
    // The difference of two runs excludes filling and draining of the pipeline. A process slightly
    // slower than the lanes delays them only once the FIFO between them is full.
    constexpr std::uint64_t kFew = 6;
    constexpr std::uint64_t kMany = 10;
    std::uint64_t few = 0;
    std::uint64_t many = 0;
    run_network(settings, card, traffic, kFew, few);
    const TokenNetwork network = run_network(settings, card, traffic, kMany, many);
    UpdaterRun run;
    run.cycles_per_tile = static_cast<double>(many - few) / (kMany - kFew);
    run.processes.assign(network.processes().begin(), network.processes().end());
    return run;
}

const char* name_of(LimitedBy bound) {
    constexpr std::array kNames = {"SSD", "DRAM", "lanes", "digest"};
    return kNames.at(static_cast<std::size_t>(bound));
}

CardEstimate estimate(const UpdaterSettings& settings, const CardRates& card) {
    const auto rate_of = [&](const UpdaterRun& run) {
        return kTileElems / run.cycles_per_tile * card.clock_hz;
    };
    const double state_bytes = bytes_per_parameter(state_words(job_of(settings)));
    const UpdaterRun with_memory = run_updater(settings, card, StepTraffic::kernel);
    CardEstimate result;
    result.lanes = rate_of(run_updater(settings, card, StepTraffic::none));
    result.kernel = rate_of(with_memory);
    result.dram = rate_of(run_updater(settings, card, StepTraffic::everything));
    const double digest_bytes_per_s =
        card.clock_hz * kXxhBlockStripes * kWordBytes / (kXxhBlockStripes + kXxhEndCycles);
    result.digest = digest_bytes_per_s / (2 * state_bytes);
    result.ssd = std::min(card.ssd_read_bytes_per_s, card.ssd_write_bytes_per_s) / state_bytes;
    const std::array<std::pair<double, LimitedBy>, 4> all = {{{result.ssd, LimitedBy::ssd},
                                                              {result.digest, LimitedBy::digest},
                                                              {result.lanes, LimitedBy::lanes},
                                                              {result.dram, LimitedBy::dram}}};
    const auto least = std::ranges::min_element(
        all, [](const auto& one, const auto& other) { return one.first < other.first; });
    result.card = least->first;
    result.bound = least->second;
    for (const Process& process : with_memory.processes) {
        if (process.name == "update_tiles") {
            const auto cycles = static_cast<double>(
                process.activity.busy + process.activity.starved + process.activity.blocked);
            result.lanes_starved = static_cast<double>(process.activity.starved) / cycles;
            result.lanes_blocked = static_cast<double>(process.activity.blocked) / cycles;
        }
    }
    return result;
}

}  // namespace nearstep::fpga

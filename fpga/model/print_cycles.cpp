// Prints the cycle model's results for every codec and state format.
#include "fpga/model/updater_model.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <string>

namespace nearstep::fpga {
namespace {

struct Named {
    const char* name;
    GradientCodec codec;
};
constexpr std::array<Named, 5> kCodecs = {{{"dense fp32", GradientCodec::dense_fp32},
                                           {"dense 16 bit", GradientCodec::dense_bf16},
                                           {"topk 1 %", GradientCodec::topk_bf16},
                                           {"q8", GradientCodec::q8},
                                           {"q4", GradientCodec::q4}}};
constexpr std::array<const char*, 4> kFormats = {"fp32", "bf16", "q8", "compact"};

void print_row(const char* format, const std::string& what, const CardEstimate& estimate) {
    const auto millions = [](double rate) { return rate / 1e6; };
    std::printf("| %s | %s | %.0f | %.0f | %.0f %% / %.0f %% | %.0f | %.0f | %.0f | %.0f | %s |\n",
                format, what.c_str(), millions(estimate.lanes), millions(estimate.kernel),
                100 * estimate.lanes_starved, 100 * estimate.lanes_blocked, millions(estimate.dram),
                millions(estimate.digest), millions(estimate.ssd), millions(estimate.card),
                name_of(estimate.bound));
}

void print_all() {
    const CardRates card;
    std::printf(
        "MODELLED, not measured: AdamW, %u lanes at %u MHz, DRAM %.1f GB/s of which %.0f %% can be "
        "used, SSD "
        "%.1f GB/s read and %.1f GB/s written. Millions of parameters per second.\n\n",
        kUpdateLanes, kClockMhz, card.dram_bytes_per_s / 1e9, 100 * card.dram_share,
        card.ssd_read_bytes_per_s / 1e9, card.ssd_write_bytes_per_s / 1e9);
    std::printf(
        "| state | gradient | lanes alone | updater alone | lanes starved / blocked | all in the "
        "DRAM | digests "
        "| SSD | card | bound |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for (std::size_t format = 0; format < kFormats.size(); ++format) {
        UpdaterSettings settings{.format = static_cast<StateFormat>(format)};
        for (const Named& codec : kCodecs) {
            settings.codec = codec.codec;
            print_row(kFormats.at(format), codec.name, estimate(settings, card));
        }
        settings.codec = GradientCodec::q4;
        settings.sources = 4;
        print_row(kFormats.at(format), "q4 of 4 nodes", estimate(settings, card));
        settings.sources = 1;
        settings.delivery = ParameterDelivery::deltas;
        print_row(kFormats.at(format), "q4, deltas out", estimate(settings, card));
    }
}

}  // namespace
}  // namespace nearstep::fpga

int main(int argc, char** argv) {
    if (argc > 1) {
        const bool is_help = std::strcmp(argv[1], "--help") == 0;
        std::fputs(is_help ? "nearstep_cycle_model: prints what the cycle model says of every "
                             "codec and state format.\n"
                           : "nearstep_cycle_model takes no arguments: leave them out.\n",
                   is_help ? stdout : stderr);
        return is_help ? 0 : 2;
    }
    nearstep::fpga::print_all();
}

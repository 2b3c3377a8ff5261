// A program that prints the cycle model's results for every codec and state format, or compares
// cards with drives. Called by people, and by a test of fpga/README.md.
#include "fpga/model/updater_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
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

// What a buyer would have instead of cards. Rates of cluster/smartssd-node and cluster/gpu-node;
// updates by 16 cores of an H200's host, measured with nearstep_micro, by state format.
struct Alternatives {
    double drives = 8;
    double link_bytes_per_s = 12e9;         // PCIe 3.0 x16, both directions together
    double fast_drive_bytes_per_s = 4.0e9;  // PCIe 4.0 x4, written; reads are faster
    double cores = 16;
    std::array<double, 4> by_cores = {4322e6, 4841e6, 5440e6, 7896e6};
    double paper_updater_bytes_per_s =
        7e9;  // Smart-Infinity's updater reads fp32 state and gradient
    double paper_bytes = 16;
};

void print_comparison() {
    const CardRates card;
    const Alternatives other;
    std::printf(
        "MODELLED, not measured, except for the rate of the cores: AdamW, q4 gradients in, bf16 "
        "parameters out. Millions of parameters per second.\n\n"
        "| state | one card's updater alone | the paper's updater at 7 GB/s | one card | 8 cards "
        "on "
        "one x16 link | 8 plain drives on that link | 8 plain drives on lanes of their own | 8 "
        "PCIe "
        "4.0 drives on lanes of their own, and the cores that they take |\n"
        "|---|---|---|---|---|---|---|---|\n");
    for (std::size_t format = 0; format < kFormats.size(); ++format) {
        const UpdaterSettings settings{.format = static_cast<StateFormat>(format),
                                       .codec = GradientCodec::q4};
        const CardEstimate one = estimate(settings, card);
        const double state_bytes =
            std::min(card.ssd_read_bytes_per_s, card.ssd_write_bytes_per_s) / one.ssd;
        // A card's link carries gradients and parameters, a plain drive's the state both ways.
        const double payload_bytes = piece_code_bytes(GradientCodec::q4) / double{kPieceElems} +
                                     sizeof(std::uint16_t) / double{kScaleElems} + 2;
        const double by_cores = other.by_cores.at(format);
        const double cards =
            std::min(other.drives * one.card, other.link_bytes_per_s / payload_bytes);
        const double drives = std::min(other.drives * one.ssd, by_cores);
        const double on_link = std::min(drives, other.link_bytes_per_s / (2 * state_bytes));
        const double fast =
            std::min(other.drives * other.fast_drive_bytes_per_s / state_bytes, by_cores);
        const std::string paper =
            settings.format == StateFormat::fp32
                ? std::to_string(static_cast<int>(
                      std::lround(other.paper_updater_bytes_per_s / other.paper_bytes / 1e6)))
                : "-";
        std::printf("| %s | %.0f | %s | %.0f | %.0f | %.0f | %.0f | %.0f, %.1f cores |\n",
                    kFormats.at(format), one.kernel / 1e6, paper.c_str(), one.card / 1e6,
                    cards / 1e6, on_link / 1e6, drives / 1e6, fast / 1e6,
                    other.cores * fast / by_cores);
    }
}

}  // namespace
}  // namespace nearstep::fpga

int main(int argc, char** argv) {
    const std::string what = argc == 2 ? argv[1] : "";
    if (argc == 1) {
        nearstep::fpga::print_all();
    } else if (what == "--compare") {
        nearstep::fpga::print_comparison();
    } else {
        const bool is_help = what == "--help";
        std::fputs(is_help
                       ? "nearstep_cycle_model: prints what the cycle model says of every codec "
                         "and state format; with --compare, of cards beside plain drives.\n"
                       : "nearstep_cycle_model takes --compare or nothing: leave the rest out.\n",
                   is_help ? stdout : stderr);
        return is_help ? 0 : 2;
    }
    return 0;
}

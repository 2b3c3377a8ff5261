// A subgroup in device memory as the updater sees it, and its update by a CPU engine.
#pragma once

#include "codec/codec.hpp"
#include "codec/delta.hpp"
#include "csd/card_groups.hpp"
#include "csd/state_format.hpp"
#include "csd/update_engine.hpp"
#include "fpga/kernel/subgroup_report.hpp"
#include "fpga/kernel/updater.hpp"
#include "memory/buffer.hpp"
#include "store/subgroup_header.hpp"
#include "support/test.hpp"

namespace nearstep::fpga {

using csd::StateArrays;

constexpr std::size_t kTile = shard::kTileElems;

struct SubgroupSettings {
    StateFormat format = StateFormat::fp32;
    codec::CodecSettings codec = {};
    std::size_t tiles = 1;
    std::size_t sources = 1;
    Dtype parameter_dtype = Dtype::bf16;
    ParameterDelivery delivery = ParameterDelivery::parameters;
    std::uint64_t first_tile = 5;
};

// The extent, payloads, parameters and report of one subgroup. Copies are independent.
class Subgroup {
public:
    static constexpr std::size_t kGap = 192;  // payloads of other subgroups before it

    explicit Subgroup(const SubgroupSettings& settings)
        : settings_(settings),
          codec_(codec::make_codec(settings.codec)),
          stride_((codec_->payload_bytes() + 63) / 64 * 64),
          extent_(store::kHeaderBytes + csd::state_bytes(settings.format, settings.tiles)),
          payloads_(kGap + settings.tiles * settings.sources * stride_),
          parameters_(codec::message_room_bytes(settings.tiles) +
                      (settings.parameter_dtype == Dtype::fp32 ? kTile * settings.tiles * 2 : 0)),
          report_((1 + settings.tiles) * kWordBytes) {
        std::memset(extent_.span().data(), 0xEE, store::kHeaderBytes);
        clear_outputs();
    }
    Subgroup(const Subgroup& other) : Subgroup(other.settings_) {
        std::ranges::copy(other.extent_.span(), extent_.span().begin());
        std::ranges::copy(other.payloads_.span(), payloads_.span().begin());
        std::ranges::copy(other.parameters_.span(), parameters_.span().begin());
        std::ranges::copy(other.report_.span(), report_.span().begin());
    }
    Subgroup& operator=(const Subgroup&) = delete;
    ~Subgroup() = default;

    const SubgroupSettings& settings() const { return settings_; }
    std::size_t elems() const { return settings_.tiles * kTile; }

    // Arrays have elems() values.
    void set_state(const StateArrays& state) { csd::narrow(settings_.format, state, payload()); }
    void set_gradient(std::size_t source, std::span<const float> values) {
        for (std::size_t tile = 0; tile < settings_.tiles; ++tile) {
            codec_->encode(values.subspan(tile * kTile, kTile), payload_of(tile, source),
                           tile_key(source, tile));
        }
    }
    std::span<std::byte> payload_of(std::size_t tile, std::size_t source) {
        return payloads_.span().subspan(kGap + (tile * settings_.sources + source) * stride_,
                                        codec_->payload_bytes());
    }

    std::span<std::byte> extent() { return extent_.span(); }
    std::span<std::byte> payload() { return extent_.span().subspan(store::kHeaderBytes); }
    std::span<std::byte> parameters() { return parameters_.span(); }
    UpdaterTotals totals() const { return report_at<UpdaterTotals>(0); }
    UpdaterTile tile_report(std::size_t tile) const { return report_at<UpdaterTile>(1 + tile); }
    bool has_report() const {
        return std::ranges::any_of(report_.span().subspan(kWordBytes),
                                   [](std::byte b) { return b != std::byte{0xEE}; });
    }

    std::vector<std::vector<float>> widened() {
        std::vector<std::vector<float>> arrays(3, std::vector<float>(elems()));
        csd::widen(settings_.format, payload(), {arrays[0], arrays[1], arrays[2]});
        return arrays;
    }

    // The sum of a tile's payloads, decoded by the host.
    std::vector<float> gradient_of(std::size_t tile) {
        std::vector<std::span<const std::byte>> list;
        for (std::size_t source = 0; source < settings_.sources; ++source) {
            list.push_back(payload_of(tile, source));
        }
        std::vector<float> sum(kTile);
        codec::decode_sum(*codec_, list, 0, sum);
        return sum;
    }

    // Launch arguments that a caller can get wrong.
    struct Launch {
        std::uint64_t state_offset = store::kHeaderBytes;
        std::uint64_t payload_offset = kGap;
        std::uint32_t tiles = 0;
        GradientCodec codec = GradientCodec::dense_fp32;
        std::uint32_t sources = 0;
        std::uint32_t payload_stride = 0;
        std::uint32_t kept = 0;
        ParameterDelivery delivery = ParameterDelivery::parameters;
        Dtype parameter_dtype = Dtype::bf16;
    };
    // The correct arguments for the settings.
    Launch launch() const {
        return {.tiles = static_cast<std::uint32_t>(settings_.tiles),
                .codec = codec_->kernel_form()->codec,
                .sources = static_cast<std::uint32_t>(settings_.sources),
                .payload_stride = static_cast<std::uint32_t>(stride_),
                .kept = kept(),
                .delivery = settings_.delivery,
                .parameter_dtype = settings_.parameter_dtype};
    }
    void run_kernel(const csd::StepScalars& scalars, const csd::GroupMap& groups = {}) {
        run_kernel(scalars, launch(), groups);
    }
    void run_kernel(const csd::StepScalars& scalars, const Launch& launch,
                    const csd::GroupMap& groups = {}) {
        clear_outputs();
        const csd::GroupTable table = csd::group_table(groups, scalars, tile_range());
        const UpdateScalars& s = table.scalars;
        auto* extent = word_at(extent_);
        auto* payloads = word_at(payloads_);
        nearstep_updater(
            extent, extent, extent, extent, extent, extent, extent, extent, payloads, payloads,
            table.words.data(), word_at(parameters_), word_at(report_), launch.state_offset,
            launch.payload_offset, settings_.first_tile, s.random_key, launch.tiles,
            static_cast<std::uint32_t>(settings_.format), static_cast<std::uint32_t>(s.optimizer),
            static_cast<std::uint32_t>(launch.codec), launch.sources, launch.payload_stride,
            launch.kept, static_cast<std::uint32_t>(launch.delivery),
            static_cast<std::uint32_t>(launch.parameter_dtype), s.gradient_scale, s.beta1,
            s.one_minus_beta1, s.beta2, s.one_minus_beta2, s.epsilon, s.decay_factor,
            s.gradient_decay, s.step_size, s.root_scale, table.runs);
    }

    // Works like csd::CpuDevice. Returns the bytes of the new parameters.
    std::size_t run_engine(const csd::UpdateEngine& engine, const csd::StepScalars& scalars,
                           const csd::GroupMap& groups = {}) {
        clear_outputs();
        const std::size_t tile_bytes = kTile * size_bytes(settings_.parameter_dtype);
        const bool has_deltas = settings_.delivery == ParameterDelivery::deltas;
        std::optional<codec::DeltaWriter> writer;
        if (has_deltas) {
            writer.emplace(parameters_.span(), tile_range());
        }
        std::vector<std::uint16_t> old(kTile);
        std::vector<std::uint16_t> fresh(kTile);
        for (std::size_t tile = 0; tile < settings_.tiles; ++tile) {
            const std::vector<float> gradient = gradient_of(tile);
            csd::UpdateRun run;
            run.format = settings_.format;
            run.state = csd::state_of_tile(settings_.format, payload(), settings_.tiles, tile);
            run.gradient = gradient.data();
            run.parameter_dtype = settings_.parameter_dtype;
            run.key = tile_key(scalars.random_key, settings_.first_tile + tile);
            run.count = kTile;
            run.parameters = parameters_.span().data() + tile * tile_bytes;
            if (has_deltas) {
                run.parameters = old.data();
                engine.round(run);
                run.parameters = fresh.data();
            }
            csd::update(engine, scalars, groups, (settings_.first_tile + tile) * kTile, run);
            if (has_deltas) {
                writer->add(old.data(), fresh.data());
            }
        }
        return writer ? writer->finish() : settings_.tiles * tile_bytes;
    }

private:
    shard::TileRange tile_range() const {
        return {settings_.first_tile, settings_.first_tile + settings_.tiles};
    }
    static Word* word_at(memory::Buffer& buffer) {
        return reinterpret_cast<Word*>(buffer.span().data());
    }
    std::uint32_t kept() const {
        return settings_.codec.name == "topk"
                   ? static_cast<std::uint32_t>(codec_->payload_bytes() / 4)
                   : 0U;
    }
    void clear_outputs() {
        std::ranges::fill(parameters_.span(), std::byte{0xEE});
        std::ranges::fill(report_.span(), std::byte{0xEE});
    }
    template <typename T>
    T report_at(std::size_t word) const {
        T value;
        std::memcpy(&value, report_.span().data() + word * kWordBytes, sizeof value);
        return value;
    }

    SubgroupSettings settings_;
    std::unique_ptr<codec::Codec> codec_;
    std::size_t stride_;
    memory::Buffer extent_;
    memory::Buffer payloads_;
    memory::Buffer parameters_;
    memory::Buffer report_;
};

}  // namespace nearstep::fpga

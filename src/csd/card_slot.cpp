// Buffers and kernel runs of a card's slot. Used by CardDevice.
#include "csd/card_slot.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "fpga/kernel/subgroup_report.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <cstring>

namespace nearstep::csd {

namespace {

using fpga::BufferKind;
using fpga::KernelDescription;

const KernelDescription& updater_kernel() { return fpga::kKernels[0]; }
const KernelDescription& digest_kernel() { return fpga::kKernels[1]; }

constexpr const char* kAdvice = "a slot: lower csd.slots or csd.subgroup_tiles";

fpga::UpdaterTotals totals_of(const fpga::CardBuffer& report) {
    fpga::UpdaterTotals totals{};
    std::memcpy(&totals, report.host().data(), sizeof totals);
    return totals;
}

// A device without tiles has slots too.
std::size_t at_least_a_page(std::size_t bytes) { return std::max(bytes, store::kHeaderBytes); }

}  // namespace

CardDigest::CardDigest(fpga::Card& card)
    : result_(card.allocate(BufferKind::normal, store::kHeaderBytes, digest_kernel(), "digest",
                            kAdvice)),
      run_(card.make_run(digest_kernel())) {}

std::uint64_t CardDigest::digest(const fpga::CardBuffer& buffer, std::size_t bytes,
                                 const std::string& purpose) {
    run_.set("memory", buffer);
    run_.set("digest", result_);
    run_.set("offset", std::uint64_t{0});
    run_.set("bytes", std::uint64_t{bytes});
    run_.start();
    run_.wait(purpose);
    result_.from_card(0, fpga::kWordBytes);
    std::uint64_t digest = 0;
    std::memcpy(&digest, result_.host().data(), sizeof digest);
    return digest;
}

CardSlot::CardSlot(fpga::Card& card, const CardSlotSizes& sizes, bool is_peer_to_peer)
    : header(store::kHeaderBytes),
      state(card.allocate(is_peer_to_peer ? BufferKind::peer_to_peer : BufferKind::normal,
                          at_least_a_page(sizes.payload_bytes), updater_kernel(), "master_in",
                          kAdvice)),
      groups(card.allocate(BufferKind::normal,
                           at_least_a_page(sizes.group_words * fpga::kWordBytes), updater_kernel(),
                           "groups", kAdvice)),
      parameters(card.allocate(BufferKind::normal,
                               round_up(at_least_a_page(sizes.parameter_bytes), fpga::kWordBytes),
                               updater_kernel(), "parameters", kAdvice)),
      report(card.allocate(BufferKind::normal,
                           at_least_a_page((1 + sizes.tiles) * fpga::kWordBytes), updater_kernel(),
                           "report", kAdvice)),
      updater(card.make_run(updater_kernel())),
      verifying(card),
      sealing_digest(card) {}

void CardSlot::start_update(const CardUpdate& update, const GroupTable& table) {
    const UpdateScalars& scalars = table.scalars;
    if (table.runs > 0) {
        const auto words = std::as_bytes(std::span(table.words));
        std::ranges::copy(words, groups.host().begin());
        groups.to_card(0, words.size());
    }
    for (const char* argument : {"master_in", "master_out", "moment1_in", "moment1_out",
                                 "moment2_in", "moment2_out", "scales_in", "scales_out"}) {
        updater.set(argument, state);
    }
    updater.set("payload_heads", *update.payloads.buffer);
    updater.set("payload_tails", *update.payloads.buffer);
    updater.set("groups", groups);
    updater.set("parameters", parameters);
    updater.set("report", report);
    updater.set("state_offset", std::uint64_t{0});  // the header is in host memory
    updater.set("payload_offset", update.payloads.offset);
    updater.set("first_tile", std::uint64_t{update.first_tile});
    updater.set("random_key", scalars.random_key);
    updater.set("tiles", static_cast<std::uint32_t>(update.tiles));
    updater.set("state_format", static_cast<std::uint32_t>(update.format));
    updater.set("optimizer", static_cast<std::uint32_t>(scalars.optimizer));
    updater.set("codec", static_cast<std::uint32_t>(update.gradient.codec));
    updater.set("sources", update.sources);
    updater.set("payload_stride", update.payloads.stride);
    updater.set("kept", update.gradient.kept);
    updater.set("delivery", static_cast<std::uint32_t>(update.delivery == Delivery::deltas
                                                           ? fpga::ParameterDelivery::deltas
                                                           : fpga::ParameterDelivery::parameters));
    updater.set("parameter_dtype", static_cast<std::uint32_t>(update.parameter_dtype));
    updater.set("gradient_scale", scalars.gradient_scale);
    updater.set("beta1", scalars.beta1);
    updater.set("one_minus_beta1", scalars.one_minus_beta1);
    updater.set("beta2", scalars.beta2);
    updater.set("one_minus_beta2", scalars.one_minus_beta2);
    updater.set("epsilon", scalars.epsilon);
    updater.set("decay_factor", scalars.decay_factor);
    updater.set("gradient_decay", scalars.gradient_decay);
    updater.set("step_size", scalars.step_size);
    updater.set("root_scale", scalars.root_scale);
    updater.set("group_runs", table.runs);
    updater.start();
}

void CardSlot::finish_update(const std::string& purpose) {
    updater.wait(purpose);
    report.from_card(0, fpga::kWordBytes);
    const fpga::UpdaterTotals totals = totals_of(report);
    if (totals.status != static_cast<std::uint32_t>(fpga::UpdaterStatus::done)) {
        throw XrtError(text("The card's updater refused its arguments (", purpose, ", status ",
                            totals.status,
                            "): the .xclbin is not of this program; build it again."));
    }
}

std::size_t CardSlot::parameter_bytes() const {
    const std::uint64_t bytes = totals_of(report).parameter_bytes;
    if (bytes > parameters.size()) {
        throw XrtError(text("The card's updater reports ", bytes, " bytes of parameters in ",
                            parameters.size(), ": the card or its .xclbin is damaged."));
    }
    return bytes;
}

}  // namespace nearstep::csd

// Asks XRT for the cards of this machine. Used by doctor.
#include "fpga/host/inventory.hpp"
#include "fpga/host/xrt_library.hpp"

#include <nlohmann/json.hpp>

#include <experimental/xrt_system.h>
#include <xrt/xrt_device.h>

#include <cstdlib>
#include <exception>

namespace nearstep::fpga {

namespace {

using Json = nlohmann::json;

constexpr double kBytesPerGib = 1024.0 * 1024.0 * 1024.0;

// XRT reports numbers as strings.
std::optional<double> number_of(const Json& text) {
    if (!text.is_string()) {
        return std::nullopt;
    }
    char* end = nullptr;
    const auto& word = text.get_ref<const std::string&>();
    const double number = std::strtod(word.c_str(), &end);
    return end == word.c_str() ? std::nullopt : std::optional(number);
}

void read_platform(const std::string& answer, CardFacts& facts) {
    const Json all = Json::parse(answer);
    const Json& platform = all.at("platforms").at(0);
    facts.ddr_gib = number_of(platform.at("off_chip_board_info").at("ddr_size_bytes"));
    if (facts.ddr_gib) {
        *facts.ddr_gib /= kBytesPerGib;
    }
    const Json status = platform.at("status").value("p2p_status", Json());
    if (status.is_string()) {
        facts.has_peer_to_peer = status == "enabled";
    }
}

void read_temperature(const std::string& answer, CardFacts& facts) {
    const Json thermal = Json::parse(answer);
    for (const Json& sensor : thermal.at("thermals")) {
        if (sensor.value("location_id", "") == "fpga0" &&
            sensor.value("is_present", "") == "true") {
            facts.celsius = number_of(sensor.at("temp_C"));
        }
    }
}

// Runs a query, which not every card answers. Facts without an answer stay empty.
template <typename Action>
void try_to(const Action& action) {
    try {
        action();
    } catch (const std::exception&) {
        return;
    }
}

CardFacts examine(unsigned index) {
    using Info = xrt::info::device;
    CardFacts facts;
    try {
        const xrt::device device(index);
        facts.address = device.get_info<Info::bdf>();
        try_to([&] { facts.shell = device.get_info<Info::name>(); });
        try_to([&] { read_platform(device.get_info<Info::platform>(), facts); });
        try_to([&] { read_temperature(device.get_info<Info::thermal>(), facts); });
    } catch (const std::exception& error) {
        facts.obstacle = error.what();
    }
    return facts;
}

}  // namespace

Inventory find_cards() {
    const XrtLibrary& library = find_library();
    Inventory found{
        .is_built = true, .version = library.version, .cards = {}, .obstacle = library.obstacle};
    if (library.obstacle.empty()) {
        try {
            const unsigned count = xrt::system::enumerate_devices();
            for (unsigned index = 0; index < count; ++index) {
                found.cards.push_back(examine(index));
            }
        } catch (const std::exception& error) {
            found.obstacle = error.what();
        }
    }
    add_pci_cards("the kernel shows it, XRT does not", found.cards);
    return found;
}

}  // namespace nearstep::fpga

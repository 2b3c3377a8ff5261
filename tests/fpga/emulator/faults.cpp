// Reads the list of planned faults and counts events. Used wherever the emulator can fail.
#include "fpga/emulator/faults.hpp"

#include <algorithm>
#include <array>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace nearstep::emulator {

namespace {

constexpr std::uint64_t kUsualCelsius = 45;

// The names of faults, in the order of FaultKind.
constexpr std::array<std::string_view, 7> kKinds = {
    "lost_completion", "run_error", "late_completion", "no_memory",
    "no_p2p",          "lost_sync", "temperature"};

// The numbers in a text such as "1:20:500".
std::vector<std::uint64_t> numbers_of(const std::string& words) {
    std::vector<std::uint64_t> numbers;
    std::istringstream in(words);
    for (std::string word; std::getline(in, word, ':');) {
        numbers.push_back(std::stoull(word));
    }
    return numbers;
}

}  // namespace

void Faults::plan(const std::string& list) {
    const std::lock_guard lock(mutex_);
    planned_.clear();
    counts_.clear();
    std::istringstream in(list);
    for (std::string part; std::getline(in, part, ',');) {
        const std::size_t equals = part.find('=');
        const std::string name = part.substr(0, equals);
        const std::vector<std::uint64_t> numbers = equals == std::string::npos
                                                       ? std::vector<std::uint64_t>()
                                                       : numbers_of(part.substr(equals + 1));
        const auto* const kind = std::ranges::find(kKinds, name);
        if (kind == kKinds.end() || numbers.size() < 2) {
            throw std::invalid_argument(part);
        }
        planned_.push_back({static_cast<FaultKind>(kind - kKinds.begin()),
                            static_cast<unsigned>(numbers[0]), numbers[1],
                            numbers.size() > 2 ? numbers[2] : 1});
    }
}

std::uint64_t Faults::next(FaultKind kind, unsigned card) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t count = ++counts_[{kind, card}];
    for (const Planned& fault : planned_) {
        if (fault.kind == kind && fault.card == card && (fault.nth == 0 || fault.nth == count)) {
            return fault.value;
        }
    }
    return 0;
}

std::uint64_t Faults::temperature(unsigned card) {
    const std::lock_guard lock(mutex_);
    for (const Planned& one : planned_) {
        if (one.kind == FaultKind::temperature && one.card == card) {
            return one.nth;
        }
    }
    return kUsualCelsius;
}

}  // namespace nearstep::emulator

#include "fpga/emulator/faults.hpp"

#include <array>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace nearstep::emulator {

namespace {

constexpr std::uint64_t kUsualCelsius = 45;

struct NamedKind {
    const char* name;
    FaultKind kind;
};

constexpr std::array<NamedKind, 6> kKinds{{
    {"lost_completion", FaultKind::lost_completion},
    {"run_error", FaultKind::run_error},
    {"late_completion", FaultKind::late_completion},
    {"no_memory", FaultKind::no_memory},
    {"no_p2p", FaultKind::no_p2p},
    {"lost_sync", FaultKind::lost_sync},
}};

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
    temperatures_.clear();
    std::istringstream in(list);
    for (std::string part; std::getline(in, part, ',');) {
        const std::size_t equals = part.find('=');
        const std::string name = part.substr(0, equals);
        const std::vector<std::uint64_t> numbers = equals == std::string::npos
                                                       ? std::vector<std::uint64_t>()
                                                       : numbers_of(part.substr(equals + 1));
        bool is_known = false;
        if (name == "temperature" && numbers.size() == 2) {
            temperatures_[static_cast<unsigned>(numbers[0])] = numbers[1];
            is_known = true;
        }
        for (const NamedKind& kind : kKinds) {
            if (name == kind.name && numbers.size() >= 2) {
                planned_.push_back({kind.kind, static_cast<unsigned>(numbers[0]), numbers[1],
                                    numbers.size() > 2 ? numbers[2] : 1});
                is_known = true;
            }
        }
        if (!is_known) {
            throw std::invalid_argument(part);
        }
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
    const auto found = temperatures_.find(card);
    return found == temperatures_.end() ? kUsualCelsius : found->second;
}

}  // namespace nearstep::emulator

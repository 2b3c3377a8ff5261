// Makes an emulated card from its .xclbin, and finds cards. Used by driver, queries and control.
#include "fpga/emulator/board.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

namespace nearstep::emulator {

namespace {

constexpr std::uint64_t kKib = 1024;
constexpr unsigned kMostCards = 64;
constexpr unsigned kAnyUnit = 0xFFFFFFFF;

// The section of this kind; null if there is none.
template <typename T>
const T* find_section(const axlf& file, axlf_section_kind kind) {
    const auto* bytes = reinterpret_cast<const char*>(&file);
    for (std::uint32_t i = 0; i < file.m_header.m_numSections; ++i) {
        const axlf_section_header& section = file.m_sections[i];
        if (section.m_sectionKind == kind) {
            return reinterpret_cast<const T*>(bytes + section.m_sectionOffset);
        }
    }
    return nullptr;
}

// Makes an object that is never destroyed, see board.hpp.
template <typename T, typename... Arguments>
T* make_for_ever(Arguments&&... arguments) {
    return std::make_unique<T>(std::forward<Arguments>(arguments)...).release();
}

std::vector<std::unique_ptr<Board>>& boards() {
    static auto* all = [] {
        auto made = std::make_unique<std::vector<std::unique_ptr<Board>>>();
        const char* wanted = std::getenv("NEARSTEP_EMULATED_CARDS");
        const auto count = wanted == nullptr ? 1UL : std::strtoul(wanted, nullptr, 10);
        for (unsigned i = 0; i < std::min<unsigned long>(count, kMostCards); ++i) {
            made->push_back(std::make_unique<Board>(i, faults()));
        }
        return made.release();
    }();
    return *all;
}

}  // namespace

Faults& faults() {
    static auto* all = [] {
        auto made = std::make_unique<Faults>();
        const char* planned = std::getenv("NEARSTEP_CARD_FAULTS");
        made->plan(planned == nullptr ? "" : planned);
        return made.release();
    }();
    return *all;
}

Board* find_board(unsigned index) {
    return index < boards().size() ? boards()[index].get() : nullptr;
}

unsigned board_count() { return static_cast<unsigned>(boards().size()); }

void Board::make_banks(const axlf& file) {
    const auto* topology = find_section<mem_topology>(file, MEM_TOPOLOGY);
    if (topology == nullptr) {
        refuse(EINVAL, "a file without memory topology");
    }
    banks_.clear();
    for (std::int32_t i = 0; i < topology->m_count; ++i) {
        const mem_data& bank = topology->m_mem_data[i];
        const auto* tag = reinterpret_cast<const char*>(bank.m_tag);
        banks_.push_back(bank.m_used != 0
                             ? make_for_ever<Bank>(std::string(tag, ::strnlen(tag, 16)),
                                                   bank.m_base_address, bank.m_size * kKib)
                             : nullptr);
    }
}

PlannedFaults Board::plan_run() {
    counters_.runs.fetch_add(1);
    PlannedFaults plan;
    plan.has_error = faults_->next(FaultKind::run_error, index_) != 0;
    plan.is_lost = faults_->next(FaultKind::lost_completion, index_) != 0;
    plan.delay_ms = faults_->next(FaultKind::late_completion, index_);
    return plan;
}

void Board::make_units(const axlf& file) {
    const auto* layout = find_section<ip_layout>(file, IP_LAYOUT);
    const auto* wires = find_section<connectivity>(file, CONNECTIVITY);
    if (layout == nullptr || wires == nullptr) {
        refuse(EINVAL, "a file without compute units or their connections");
    }
    units_.clear();
    // Kernels are listed in the order of their addresses, as XRT counts them.
    for (std::int32_t ip = 0; ip < layout->m_count; ++ip) {
        std::set<Bank*> reached;
        for (std::int32_t i = 0; i < wires->m_count; ++i) {
            const connection& wire = wires->m_connection[i];
            if (wire.m_ip_layout_index == ip) {
                reached.insert(banks_.at(static_cast<std::size_t>(wire.mem_data_index)));
            }
        }
        const std::string name = reinterpret_cast<const char*>(layout->m_ip_data[ip].m_name);
        const auto translate = [reached](std::uint64_t address, std::uint64_t bytes) -> void* {
            for (Bank* bank : reached) {
                if (std::byte* found = bank == nullptr ? nullptr : bank->find(address, bytes)) {
                    return found;
                }
            }
            return nullptr;
        };
        units_.push_back(make_for_ever<ComputeUnit>(name.substr(0, name.find(':')), translate,
                                                    [this] { return plan_run(); }));
    }
}

void Board::load(const axlf& file) {
    Uuid uuid{};
    std::memcpy(uuid.data(), file.m_header.uuid, uuid.size());
    const std::lock_guard lock(mutex_);
    if (uuid == uuid_) {
        return;
    }
    make_banks(file);
    make_units(file);
    uuid_ = uuid;
}

void Board::check_context(const Uuid& uuid, unsigned unit) {
    const std::lock_guard lock(mutex_);
    if (uuid != uuid_) {
        refuse(EBUSY, "another file is loaded");
    }
    if (unit != kAnyUnit && unit >= units_.size()) {
        refuse(EINVAL, "no such compute unit");
    }
}

Bank* Board::bank(unsigned index) {
    const std::lock_guard lock(mutex_);
    return index < banks_.size() ? banks_[index] : nullptr;
}

ComputeUnit* Board::choose_unit(const std::vector<std::uint32_t>& mask) {
    constexpr unsigned kBits = 32;
    const std::lock_guard lock(mutex_);
    ComputeUnit* best = nullptr;
    for (unsigned i = 0; i < units_.size() && i < mask.size() * kBits; ++i) {
        const bool is_named = ((mask[i / kBits] >> (i % kBits)) & 1U) != 0;
        if (is_named && (best == nullptr || units_[i]->pending() < best->pending())) {
            best = units_[i];
        }
    }
    return best;
}

bool Board::abort(const void* owner, unsigned command) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(units_,
                               [&](ComputeUnit* unit) { return unit->abort(owner, command); });
}

void Board::reset() {
    const std::lock_guard lock(mutex_);
    for (ComputeUnit* unit : units_) {
        unit->reset();
    }
}

}  // namespace nearstep::emulator

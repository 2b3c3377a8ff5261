// Opens cards by XRT: their kernels and buffers. Used by csd.
#include "base/log.hpp"
#include "base/units.hpp"
#include "fpga/host/card.hpp"
#include "fpga/host/xrt_state.hpp"

#include <experimental/xrt_xclbin.h>
#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include <filesystem>
#include <map>
#include <utility>

namespace nearstep::fpga {

namespace {

constexpr std::size_t kPageBytes = 4096;

struct LoadedKernel {
    xrt::kernel code;
    int units = 0;
};

xrt::device open_device(const std::string& card) {
    const bool is_index = card.find_first_not_of("0123456789") == std::string::npos;
    try {
        return is_index ? xrt::device(static_cast<unsigned>(std::stoul(card))) : xrt::device(card);
    } catch (const std::exception& error) {
        throw ConfigError(
            text("The card \"", card, "\" cannot be opened (", error.what(),
                 "): name one that `nearstep doctor` lists in csd.cards. XRT wants its environment "
                 "(source /opt/xilinx/xrt/setup.sh); without cards, emulated ones do: "
                 "launch/emulated-cards."));
    }
}

// How the kernel in the file differs from its table, as a phrase; empty if it does not.
std::string difference_of(const xrt::xclbin& file, const KernelDescription& kernel) {
    std::vector<xrt::xclbin::arg> found;
    bool is_there = false;
    for (const xrt::xclbin::kernel& one : file.get_kernels()) {
        if (one.get_name() == kernel.name) {
            is_there = true;
            found = one.get_args();
        }
    }
    if (!is_there) {
        return text("has no kernel ", kernel.name);
    }
    if (found.size() != kernel.count) {
        return text("has a kernel ", kernel.name, " with ", found.size(), " arguments, not ",
                    kernel.count);
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
        if (found[i].get_name() != kernel.arguments[i].name) {
            return text("has a kernel ", kernel.name, " whose argument ", i, " is ",
                        found[i].get_name(), ", not ", kernel.arguments[i].name);
        }
    }
    return "";
}

xrt::xclbin read_xclbin(const std::string& path) {
    if (path.empty()) {
        throw ConfigError(
            "csd.device = \"xrt\" wants the kernels of its cards: set csd.xclbin to their file "
            "(docs/smartssd.md says how it is built).");
    }
    if (!std::filesystem::is_regular_file(path)) {
        throw ConfigError(
            text("There is no file \"", path,
                 "\" with the kernels of cards: set csd.xclbin to it (docs/smartssd.md "
                 "says how it is built)."));
    }
    std::string wrong;
    try {
        xrt::xclbin file(path);
        for (const KernelDescription& kernel : kKernels) {
            wrong = wrong.empty() ? difference_of(file, kernel) : wrong;
        }
        if (wrong.empty()) {
            return file;
        }
    } catch (const std::exception& error) {
        wrong = text("cannot be read (", error.what(), ")");
    }
    throw ConfigError(text("The file \"", path, "\" ", wrong,
                           ": build it from the same sources as this program."));
}

std::string describe(const xrt::device& device) {
    auto address = device.get_info<xrt::info::device::bdf>();
    try {
        return text(address, " (", device.get_info<xrt::info::device::name>(), ")");
    } catch (const std::exception&) {
        return address;
    }
}

}  // namespace

struct Card::State {
    std::string name;
    CardSettings settings;
    std::shared_ptr<CardHealth> health = std::make_shared<CardHealth>();
    xrt::device device;
    std::map<std::string, LoadedKernel> kernels;
    bool has_peer_to_peer = false;

    LoadedKernel& kernel(const KernelDescription& description) {
        const auto found = kernels.find(description.name);
        expects(found != kernels.end(), "the kernel is one of nearstep's");
        return found->second;
    }
};

Card::Card(const CardSettings& settings) : state_(std::make_unique<State>()) {
    require_cards();
    State& state = *state_;
    const xrt::xclbin file = read_xclbin(settings.xclbin);
    state.settings = settings;
    state.device = open_device(settings.card);
    state.name = describe(state.device);
    const auto uuid = call_xrt(state.name, text("loading ", settings.xclbin),
                               [&] { return state.device.load_xclbin(file); });
    for (const KernelDescription& kernel : kKernels) {
        const auto units = static_cast<int>(file.get_kernel(kernel.name).get_cus().size());
        state.kernels[kernel.name] = call_xrt(state.name, text("opening ", kernel.name), [&] {
            return LoadedKernel{xrt::kernel(state.device, uuid, kernel.name), units};
        });
    }
    const KernelDescription& updater = kKernels[0];
    try {
        allocate(BufferKind::peer_to_peer, kPageBytes, updater, updater.arguments[0].name,
                 "a test of peer-to-peer access");
        state.has_peer_to_peer = true;
    } catch (const XrtError& refusal) {
        log_event("no_peer_to_peer",
                  {{"card", state.name},
                   {"instead", "state passes through host memory"},
                   {"remedy", "sudo xbutil configure --device ADDRESS --p2p enable"},
                   {"reason", refusal.what()}});
    }
}

Card::Card(Card&&) noexcept = default;
Card& Card::operator=(Card&&) noexcept = default;
Card::~Card() = default;

const std::string& Card::name() const { return state_->name; }
bool Card::has_peer_to_peer() const { return state_->has_peer_to_peer; }

CardBuffer Card::allocate(BufferKind kind, std::size_t bytes, const KernelDescription& kernel,
                          const char* argument, const std::string& purpose) {
    expects(bytes > 0 && bytes <= kMostBufferBytes, "a buffer of a card is smaller than 4 GiB");
    const std::size_t index = index_of(kernel, argument);
    expects(index < kernel.count && is_memory(kernel.arguments[index].kind),
            "a buffer is for an argument that is memory");
    const xrt::kernel& code = state_->kernel(kernel).code;
    const auto flags = kind == BufferKind::normal ? xrt::bo::flags::normal : xrt::bo::flags::p2p;
    auto memory = std::make_shared<CardBuffer::Memory>();
    memory->kind = kind;
    memory->card = state_->name;
    try {
        const int bank = code.group_id(static_cast<int>(index));
        // Whole pages: XRT allocates the host's part with aligned_alloc, which requires them.
        memory->bo = xrt::bo(state_->device, round_up(bytes, kPageBytes), flags,
                             static_cast<xrt::memory_group>(bank));
        auto* host = static_cast<std::byte*>(memory->bo.map());
        return {std::move(memory), {host, bytes}};
    } catch (const std::exception& error) {
        throw XrtError(text("Card ", state_->name, " has no buffer of ", bytes, " bytes for ",
                            purpose, " (", error.what(), ")"));
    }
}

int Card::units(const KernelDescription& kernel) const { return state_->kernel(kernel).units; }

KernelRun Card::make_run(const KernelDescription& kernel) {
    auto run = std::make_unique<KernelRun::State>();
    run->kernel = kernel;
    run->card = state_->name;
    run->health = state_->health;
    run->longest = state_->settings.longest_run;
    run->code = state_->kernel(kernel).code;
    run->memory.resize(kernel.count);
    run->run = call_xrt(state_->name, text("preparing ", kernel.name),
                        [&] { return xrt::run(run->code); });
    return KernelRun(std::move(run));
}

void CardBuffer::synchronise(Way way, std::size_t offset, std::size_t bytes) const {
    expects(offset % kWordBytes == 0 && bytes % kWordBytes == 0 && offset + bytes <= size(),
            "what is synchronised is whole words of the buffer");
    if (memory_->kind == BufferKind::normal && bytes > 0) {
        const bool is_to_card = way == Way::to_card;
        call_xrt(memory_->card, is_to_card ? "copying to the card" : "copying from the card", [&] {
            memory_->bo.sync(is_to_card ? XCL_BO_SYNC_BO_TO_DEVICE : XCL_BO_SYNC_BO_FROM_DEVICE,
                             bytes, offset);
        });
    }
}

}  // namespace nearstep::fpga

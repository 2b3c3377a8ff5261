// Replaces card_xrt.cpp, run_xrt.cpp and inventory_xrt.cpp in builds without XRT. Every call of a
// card refuses; the inventory has what Linux shows.
#include "base/error.hpp"
#include "fpga/host/card.hpp"
#include "fpga/host/inventory.hpp"

namespace nearstep::fpga {

namespace {

[[noreturn]] void refuse() {
    throw ConfigError(
        "csd.device = \"xrt\" wants a program that was built with XRT, and this one was built "
        "without: run launch/setup on Debian 12 (or install XRT) and build it again, or use "
        "csd.device = \"emulated\".");
}

}  // namespace

struct CardBuffer::Memory {};
struct KernelRun::State {};
struct Card::State {};

void require_cards() { refuse(); }

void CardBuffer::synchronise(Way, std::size_t, std::size_t) const { refuse(); }

KernelRun::KernelRun(std::unique_ptr<State> state) : state_(std::move(state)) {}
KernelRun::KernelRun(KernelRun&&) noexcept = default;
KernelRun& KernelRun::operator=(KernelRun&&) noexcept = default;
KernelRun::~KernelRun() = default;
void KernelRun::set(const char*, const CardBuffer&) { refuse(); }
void KernelRun::set(const char*, std::uint64_t) { refuse(); }
void KernelRun::set(const char*, std::uint32_t) { refuse(); }
void KernelRun::set(const char*, float) { refuse(); }
void KernelRun::start() { refuse(); }
void KernelRun::wait(const std::string&) { refuse(); }

Card::Card(const CardSettings&) { refuse(); }
Card::Card(Card&&) noexcept = default;
Card& Card::operator=(Card&&) noexcept = default;
Card::~Card() = default;
const std::string& Card::name() const { refuse(); }
bool Card::has_peer_to_peer() const { refuse(); }
CardBuffer Card::allocate(BufferKind, std::size_t, const KernelDescription&, const char*,
                          const std::string&) {
    refuse();
}
int Card::units(const KernelDescription&) const { refuse(); }
KernelRun Card::make_run(const KernelDescription&) { refuse(); }

Inventory find_cards() {
    Inventory found;
    found.obstacle = "this program was built without XRT";
    add_pci_cards(found.obstacle, found.cards);
    return found;
}

}  // namespace nearstep::fpga

// State shared by card_xrt.cpp and run_xrt.cpp.
#pragma once

#include "base/error.hpp"
#include "base/wording.hpp"
#include "fpga/host/card.hpp"

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace nearstep::fpga {

struct CardBuffer::Memory {
    xrt::bo bo;
    BufferKind kind = BufferKind::normal;
    std::string card;
};

// Shared by the runs of a card. A run that did not end may block all later ones, so the card is
// given up: every later wait fails at once with the same reason.
class CardHealth {
public:
    void give_up(const std::string& reason) {
        const std::lock_guard lock(mutex_);
        if (reason_.empty()) {
            reason_ = reason;
        }
    }
    // Throws XrtError with the first reason if the card was given up.
    void check() const {
        const std::lock_guard lock(mutex_);
        if (!reason_.empty()) {
            throw XrtError(reason_);
        }
    }

private:
    mutable std::mutex mutex_;
    std::string reason_;
};

struct KernelRun::State {
    KernelDescription kernel;
    std::string card;
    std::shared_ptr<CardHealth> health;
    std::chrono::milliseconds longest;
    xrt::kernel code;
    xrt::run run;
    // Memory of the arguments; it lives as long as a run that may use it.
    std::vector<std::shared_ptr<CardBuffer::Memory>> memory;
    bool is_in_flight = false;
};

// Calls XRT and turns its exceptions into an XrtError naming the card and `what`, a phrase.
template <typename Call>
auto call_xrt(const std::string& card, const std::string& what, const Call& call) {
    try {
        return call();
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        throw XrtError(text("Card ", card, ": ", what, " failed (", error.what(),
                            "): look at it with `nearstep doctor` and `xbutil examine`, then start "
                            "again with ",
                            Term::resume, "."));
    }
}

}  // namespace nearstep::fpga

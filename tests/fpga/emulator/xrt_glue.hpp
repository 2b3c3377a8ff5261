// Internal declarations of XRT 2.13 that its public headers lack. They are checked when the driver
// is built and loaded, see docs/smartssd.md.
#pragma once

#include <version.h>

#if !defined(__x86_64__) || XRT_VERSION_CODE != XRT_VERSION(2, 13)
#error "The emulated card is for XRT 2.13 on x86-64: see docs/smartssd.md"
#endif

#include <xrt.h>

#include <boost/any.hpp>
#include <memory>
#include <stdexcept>
#include <string>

// NOLINTBEGIN: names and shapes are XRT's
struct axlf;

namespace xrt_core {

class device {
public:
    void register_axlf(const axlf* top);
};

std::shared_ptr<device> get_userpf_device(void* handle, unsigned int index);

namespace query {

enum class key_type : int {
    pcie_bdf = 8,
    rom_vbnv = 12,
    rom_ddr_bank_size_gb = 13,
    rom_ddr_bank_count_max = 14,
    rom_time_since_epoch = 18,
    m2m = 60,
    nodma = 62,
    clock_freqs_mhz = 64,
    p2p_config = 72,
    temp_fpga = 76,
    kds_numcdmas = 138,
    is_offline = 151,
    interface_uuids = 156,
    logic_uuids = 157,
};

class exception : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class no_such_key : public exception {
public:
    no_such_key(key_type key, const std::string& message) : exception(message), m_key(key) {}
    key_type get_key() const { return m_key; }

private:
    key_type m_key;
};

class request {
public:
    virtual ~request() = default;
    virtual boost::any get(const device*) const = 0;
    virtual boost::any get(const device*, const boost::any&) const {
        throw std::runtime_error("query");
    }
    virtual boost::any get(const device*, const boost::any&, const boost::any&) const {
        throw std::runtime_error("query");
    }
    virtual boost::any get(const device*, int, const std::string&) const {
        throw std::runtime_error("query");
    }
    virtual boost::any get(const device*, int, const boost::any&, const std::string&) const {
        throw std::runtime_error("query");
    }
    virtual void put(const device*, const boost::any&) const { throw std::runtime_error("query"); }
};

}  // namespace query
}  // namespace xrt_core
// NOLINTEND

static_assert(sizeof(boost::any) == 8, "XRT returns boost::any through a hidden pointer");
static_assert(sizeof(xrt_core::query::request) == 8, "a request has no data");
static_assert(sizeof(xrt_core::query::exception) == 16, "as in XRT 2.13");
static_assert(sizeof(xrt_core::query::no_such_key) == 24, "as in XRT 2.13");
static_assert(sizeof(xclBufferHandle) == 4 && sizeof(xclDeviceHandle) == 8, "as in XRT 2.13");

// Writes an .xclbin: the kernels as XML, banks, compute units and their wires. Used by
// write_xclbin.cpp.
#include "fpga/emulator/xclbin_writer.hpp"

#include <xclbin.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>
#include <stdexcept>

namespace nearstep::emulator {

namespace {

using fpga::Argument;
using fpga::is_memory;
using fpga::KernelDescription;

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kUnitSpaceBytes = 0x10000;
constexpr std::uint64_t kFirstUnit = 0x1400000;
constexpr std::uint64_t kKib = 1024;
constexpr std::size_t kSectionAlignment = 8;

template <typename T>
void append(Bytes& to, const T& value) {
    const auto* begin = reinterpret_cast<const std::byte*>(&value);
    to.insert(to.end(), begin, begin + sizeof value);
}

template <std::size_t kRoom>
// NOLINTNEXTLINE(modernize-avoid-c-arrays): fields of XRT's structs
void put_name(unsigned char (&to)[kRoom], const std::string& name) {
    if (name.size() >= kRoom) {
        throw std::invalid_argument(name + " is too long a name for an .xclbin");
    }
    std::memcpy(static_cast<unsigned char*>(to), name.c_str(), name.size() + 1);
}

std::string hexadecimal(std::uint64_t value) {
    std::ostringstream out;
    out << "0x" << std::hex << value;
    return out.str();
}

void write_argument(std::ostream& out, const KernelDescription& kernel, std::size_t index) {
    const Argument& argument = kernel.arguments[index];
    const bool is_pointer = is_memory(argument.kind);
    const std::string bytes = hexadecimal(fpga::size_bytes(argument.kind));
    out << "<arg name=\"" << argument.name << "\" addressQualifier=\"" << (is_pointer ? 1 : 0)
        << "\" id=\"" << index << "\" port=\""
        << (is_pointer ? std::string("M_AXI_") + argument.bundle : "S_AXI_CONTROL") << "\" size=\""
        << bytes << "\" offset=\"" << hexadecimal(fpga::register_offset(kernel, index))
        << "\" hostOffset=\"0x0\" hostSize=\"" << bytes << "\" type=\""
        << (is_pointer                                 ? "void*"
            : argument.kind == fpga::ArgumentKind::u64 ? "ulong"
            : argument.kind == fpga::ArgumentKind::u32 ? "uint"
                                                       : "float")
        << "\"/>\n";
}

void write_kernel(std::ostream& out, const KernelDescription& kernel) {
    out << "<kernel name=\"" << kernel.name
        << "\" language=\"c\" type=\"pl\" hwControlProtocol=\"ap_ctrl_hs\">\n"
        << "<port name=\"S_AXI_CONTROL\" mode=\"slave\" range=\"" << hexadecimal(kUnitSpaceBytes)
        << "\" dataWidth=\"32\" portType=\"addressable\" base=\"0x0\"/>\n";
    std::set<std::string> bundles;
    for (std::size_t i = 0; i < kernel.count; ++i) {
        const Argument& argument = kernel.arguments[i];
        if (is_memory(argument.kind) && bundles.insert(argument.bundle).second) {
            out << "<port name=\"M_AXI_" << argument.bundle
                << "\" mode=\"master\" range=\"0xFFFFFFFFFFFFFFFF\" dataWidth=\"512\" "
                   "portType=\"addressable\" base=\"0x0\"/>\n";
        }
    }
    for (std::size_t i = 0; i < kernel.count; ++i) {
        write_argument(out, kernel, i);
    }
    out << "</kernel>\n";
}

// A count, then from byte `begin` on the entries.
template <typename Entry>
Bytes make_section(std::size_t begin, const std::vector<Entry>& entries) {
    Bytes section(begin);
    const auto count = static_cast<std::int32_t>(entries.size());
    std::memcpy(section.data(), &count, sizeof count);
    for (const Entry& entry : entries) {
        append(section, entry);
    }
    return section;
}

std::vector<mem_data> make_banks(const CardDescription& card) {
    std::vector<mem_data> banks;
    for (const BankOnCard& bank : card.banks) {
        mem_data& data = banks.emplace_back(mem_data{});
        data.m_type = MEM_DDR4;
        data.m_used = 1;
        data.m_size = bank.bytes / kKib;
        data.m_base_address = bank.base;
        put_name(data.m_tag, bank.name);
    }
    return banks;
}

// The compute units, and which of their arguments are wired to which bank.
struct Units {
    std::vector<ip_data> units;
    std::vector<connection> wires;
};

void add_unit(const CardDescription& card, const KernelDescription& kernel, int number,
              Units& made) {
    const auto index = static_cast<std::int32_t>(made.units.size());
    ip_data& data = made.units.emplace_back(ip_data{});
    data.m_type = IP_KERNEL;
    data.m_base_address = kFirstUnit + static_cast<std::uint64_t>(index) * kUnitSpaceBytes;
    put_name(data.m_name,
             std::string(kernel.name) + ":" + kernel.name + "_" + std::to_string(number));
    for (std::size_t i = 0; i < kernel.count; ++i) {
        const Argument& argument = kernel.arguments[i];
        const auto bank = std::ranges::find_if(
            card.banks, [&](const BankOnCard& one) { return one.name == argument.bank; });
        if (is_memory(argument.kind) && bank == card.banks.end()) {
            throw std::invalid_argument(std::string("the card has no bank ") + argument.bank);
        }
        if (is_memory(argument.kind)) {
            made.wires.push_back({static_cast<std::int32_t>(i), index,
                                  static_cast<std::int32_t>(bank - card.banks.begin())});
        }
    }
}

// FNV-1a; any digest that depends on every byte would do.
std::uint64_t digest_of(const Bytes& bytes, std::uint64_t seed) {
    std::uint64_t digest = 0xCBF29CE484222325U ^ seed;
    for (const std::byte byte : bytes) {
        digest = (digest ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3U;
    }
    return digest;
}

struct Section {
    axlf_section_kind kind;
    std::string name;
    Bytes bytes;
};

std::vector<Section> make_sections(const CardDescription& card) {
    const std::string metadata = make_metadata(card);
    const auto* text = reinterpret_cast<const std::byte*>(metadata.data());
    Units made;
    for (const KernelOnCard& on_card : card.kernels) {
        for (int number = 1; number <= on_card.units; ++number) {
            add_unit(card, on_card.kernel, number, made);
        }
    }
    const Bytes banks = make_section(offsetof(mem_topology, m_mem_data), make_banks(card));
    const Bytes wires = make_section(offsetof(connectivity, m_connection), made.wires);
    return {{EMBEDDED_METADATA, "metadata", Bytes(text, text + metadata.size())},
            {MEM_TOPOLOGY, "mem_topology", banks},
            {ASK_GROUP_TOPOLOGY, "group_topology", banks},
            {CONNECTIVITY, "connectivity", wires},
            {ASK_GROUP_CONNECTIVITY, "group_connect", wires},
            {IP_LAYOUT, "ip_layout", make_section(offsetof(ip_layout, m_ip_data), made.units)}};
}

}  // namespace

std::string make_metadata(const CardDescription& card) {
    std::ostringstream out;
    out << "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<project name=\"nearstep\">\n"
        << "<platform vendor=\"xilinx\" boardid=\"u2\" name=\"emulated\">\n"
        << "<device name=\"fpga0\" fpgaDevice=\"emulated\">\n<core name=\"OCL_REGION_0\">\n"
        << "<kernelClocks><clock port=\"KERNEL_CLK\" frequency=\"300MHz\"/></kernelClocks>\n";
    for (const KernelOnCard& on_card : card.kernels) {
        write_kernel(out, on_card.kernel);
    }
    out << "</core>\n</device>\n</platform>\n</project>\n";
    return out.str();
}

std::vector<std::byte> make_xclbin(const CardDescription& card) {
    const std::vector<Section> sections = make_sections(card);
    axlf top{};
    std::memcpy(static_cast<char*>(top.m_magic), "xclbin2", sizeof top.m_magic);
    top.m_signature_length = -1;
    std::fill(std::begin(top.reserved), std::end(top.reserved), static_cast<unsigned char>(0xFF));
    axlf_header& header = top.m_header;
    header.m_versionMajor = 2;
    header.m_versionMinor = 13;
    header.m_numSections = static_cast<std::uint32_t>(sections.size());
    put_name(header.m_platformVBNV, "xilinx_u2_emulated");
    std::uint64_t low = 0;
    std::uint64_t high = 1;
    const std::size_t head_bytes = sizeof top + (sections.size() - 1) * sizeof(axlf_section_header);
    Bytes body;
    std::vector<axlf_section_header> table;
    for (const Section& section : sections) {
        body.resize((body.size() + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment);
        axlf_section_header entry{};
        entry.m_sectionKind = section.kind;
        std::memcpy(static_cast<char*>(entry.m_sectionName), section.name.c_str(),
                    section.name.size());
        entry.m_sectionOffset = head_bytes + body.size();
        entry.m_sectionSize = section.bytes.size();
        table.push_back(entry);
        body.insert(body.end(), section.bytes.begin(), section.bytes.end());
        low = digest_of(section.bytes, low);
        high = digest_of(section.bytes, high + section.kind);
    }
    header.m_length = head_bytes + body.size();
    std::memcpy(&header.uuid[0], &low, sizeof low);
    std::memcpy(&header.uuid[sizeof low], &high, sizeof high);
    top.m_uniqueId = low;
    Bytes file;
    append(file, top);
    file.resize(head_bytes);
    std::memcpy(file.data() + offsetof(axlf, m_sections), table.data(),
                table.size() * sizeof(axlf_section_header));
    file.insert(file.end(), body.begin(), body.end());
    return file;
}

}  // namespace nearstep::emulator

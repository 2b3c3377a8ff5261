// Compares the table of a kernel's arguments with its interface and its link configuration.
#include "fpga/kernel/arguments.hpp"

#include "fpga/kernel/card_resources.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

#include <regex>
#include <sstream>

namespace nearstep::fpga {
namespace {

std::string text_of(const std::string& file) {
    return bytes_of(test::source_file("fpga/kernel/" + file));
}

// Parameter names of the function declared in `text` as `name`.
std::vector<std::string> parameters_of(const std::string& text, const std::string& name) {
    const std::size_t begin = text.find("void " + name + "(");
    EXPECT_NE(begin, std::string::npos) << name;
    const std::size_t open = text.find('(', begin);
    std::istringstream list(text.substr(open + 1, text.find(')', open) - open - 1));
    std::vector<std::string> names;
    for (std::string one; std::getline(list, one, ',');) {
        names.push_back(one.substr(one.find_last_of(" *\n") + 1));
    }
    return names;
}

const std::map<std::string, std::string> kSources = {{"nearstep_updater", "updater.cpp"},
                                                     {"nearstep_digest", "digest.cpp"}};

TEST(Arguments, HaveTheNamesOfTheParameters) {
    for (const KernelDescription& kernel : kKernels) {
        std::vector<std::string> wanted;
        for (std::size_t i = 0; i < kernel.count; ++i) {
            wanted.emplace_back(kernel.arguments[i].name);
        }
        EXPECT_EQ(parameters_of(text_of("updater.hpp"), kernel.name), wanted);
        EXPECT_EQ(parameters_of(text_of(kSources.at(kernel.name)), kernel.name), wanted);
    }
}

// Each interface pragma in a kernel's source: its port and its settings.
std::map<std::string, std::string> interfaces_of(const std::string& source,
                                                 const std::string& kind) {
    std::map<std::string, std::string> found;
    const std::string text = text_of(source);
    const std::regex pragma("#pragma HLS interface " + kind + " port = (\\w+) ([^\n]*)");
    for (std::sregex_iterator at(text.begin(), text.end(), pragma), end; at != end; ++at) {
        found[(*at)[1]] = (*at)[2];
    }
    return found;
}

TEST(Arguments, ArePortsOfTheSynthesizedInterface) {
    for (const KernelDescription& kernel : kKernels) {
        const auto ports = interfaces_of(kSources.at(kernel.name), "m_axi");
        const auto registers = interfaces_of(kSources.at(kernel.name), "s_axilite");
        std::map<std::string, std::string> wanted;
        for (std::size_t i = 0; i < kernel.count; ++i) {
            const Argument& argument = kernel.arguments[i];
            EXPECT_EQ(registers.at(argument.name), "bundle = control");
            if (is_memory(argument.kind)) {
                const std::string way = argument.kind == ArgumentKind::memory_in ? "read" : "write";
                wanted[argument.name] = "bundle = " + std::string(argument.bundle) +
                                        " offset = slave max_" + way +
                                        "_burst_length = " + std::to_string(kBurstWords) + " num_" +
                                        way + "_outstanding = " + std::to_string(kBurstsUnderway);
            }
        }
        EXPECT_EQ(ports, wanted);
        EXPECT_EQ(registers.size(), kernel.count + 1) << "and the return";
    }
}

TEST(Arguments, ShareAPortOnlyAsItsTwoChannels) {
    std::map<std::string, std::set<std::string>> ports;
    for (const KernelDescription& kernel : kKernels) {
        std::set<std::pair<std::string, ArgumentKind>> channels;
        for (std::size_t i = 0; i < kernel.count; ++i) {
            const Argument& argument = kernel.arguments[i];
            if (is_memory(argument.kind)) {
                EXPECT_TRUE(channels.emplace(argument.bundle, argument.kind).second)
                    << argument.name;
                ports[kernel.name].insert(argument.bundle);
            }
        }
    }
    EXPECT_LE(kMostUpdaters * ports["nearstep_updater"].size() + ports["nearstep_digest"].size(),
              kMostPorts);
}

// Every kernel is linked once, with every memory port at its bank.
TEST(Arguments, AreLinkedAsTheTablesSay) {
    std::string wanted = text("kernel_frequency=", kClockMhz, "\n\n[connectivity]\n");
    for (const KernelDescription& kernel : kKernels) {
        const std::string unit = std::string(kernel.name) + "_1";
        wanted += text("nk=", kernel.name, ":1\n");
        for (std::size_t i = 0; i < kernel.count; ++i) {
            const Argument& argument = kernel.arguments[i];
            if (is_memory(argument.kind)) {
                wanted += text("sp=", unit, ".", argument.name, ":", argument.bank, "\n");
            }
        }
    }
    const std::string comments = "(#[^\n]*\n)+";
    EXPECT_EQ(std::regex_replace(text_of("link.cfg"), std::regex(comments), ""), wanted);
}

// Expected values by hand after UG1399: values from 0x10 on, 12 bytes per 64-bit value and 8 per
// 32-bit value.
TEST(Arguments, LieAtTheOffsetsOfTheControlPort) {
    const KernelDescription& updater = kKernels[0];
    const auto offset_of = [&](const char* name) {
        return register_offset(updater, index_of(updater, name));
    };
    EXPECT_EQ(offset_of("master_in"), 0x10U);
    EXPECT_EQ(offset_of("master_out"), 0x1CU);
    EXPECT_EQ(offset_of("report"), 0xA0U);
    EXPECT_EQ(offset_of("state_offset"), 0xACU);
    EXPECT_EQ(offset_of("random_key"), 0xD0U);
    EXPECT_EQ(offset_of("tiles"), 0xDCU);
    EXPECT_EQ(offset_of("state_format"), 0xE4U);
    EXPECT_EQ(offset_of("root_scale"), 0x16CU);
    EXPECT_EQ(register_offset(updater, updater.count), 0x17CU);
    EXPECT_EQ(index_of(updater, "no such argument"), updater.count);
}

}  // namespace
}  // namespace nearstep::fpga

// Asks the MPI library what it is and which transport it chose. Called once at the start of a run,
// and by doctor and the network bench.
#include "mpi/mpi_library.hpp"

#include "base/error.hpp"
#include "mpi/call.hpp"
#include "mpi/session.hpp"

#include <algorithm>
#include <array>
#include <string_view>

// Open MPI's extension. Weak, as all of MPI is here (call.hpp): other libraries lack it.
// NOLINTNEXTLINE(readability-identifier-naming)
extern "C" [[gnu::weak]] int MPIX_Query_cuda_support();

namespace nearstep::mpi {

namespace {

std::string version() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> out{};
    int length = 0;
    check(MPI_Get_library_version(out.data(), &length));
    const std::string line(out.data());
    return line.substr(0, line.find_first_of(",\n"));
}

// Open components of one of Open MPI's frameworks: each has a setting FRAMEWORK_NAME_major_version,
// which Open MPI withdraws when it closes the component.
std::vector<std::string> components(const std::vector<std::string>& settings,
                                    std::string_view framework) {
    constexpr std::string_view kEnd = "_major_version";
    std::vector<std::string> names;
    for (const std::string_view setting : settings) {
        if (setting.starts_with(framework) && setting.ends_with(kEnd)) {
            const std::size_t both = framework.size() + kEnd.size();
            names.emplace_back(setting.substr(framework.size(), setting.size() - both));
        }
    }
    std::ranges::sort(names);
    return names;
}

}  // namespace

CudaSupport cuda_support() {
    if (&MPIX_Query_cuda_support == nullptr) {
        return CudaSupport::unknown;
    }
    return MPIX_Query_cuda_support() != 0 ? CudaSupport::yes : CudaSupport::no;
}

bool is_loaded() { return &MPI_Init_thread != nullptr; }

Library describe_library() {
    Library library{.version = is_loaded() ? version() : "", .transport = {}, .networks = {}};
    if (!is_running()) {
        return library;
    }
    const std::vector<std::string> settings = settings_in_force();
    const std::vector<std::string> layers = components(settings, "pml_");
    if (layers.empty()) {
        return library;
    }
    library.transport = layers.front();
    if (library.transport == "ob1" || library.transport == "cm") {
        library.networks = components(settings, library.transport == "ob1" ? "btl_" : "mtl_");
        std::erase(library.networks, "self");
    }
    return library;
}

bool speaks_pmi2() {
    const std::vector<std::string> all = components(settings_in_force(), "pmix_");
    return std::ranges::find(all, "s2") != all.end();
}

std::string transport_words(const Library& library) {
    std::string words = library.transport.empty() ? "an unknown transport" : library.transport;
    for (std::size_t i = 0; i < library.networks.size(); ++i) {
        const bool is_last = i + 1 == library.networks.size();
        words += text(i == 0 ? " over " : is_last ? " and " : ", ", library.networks[i]);
    }
    return words;
}

std::string describe(const Library& library) {
    if (!is_running()) {
        return text(library.version.empty() ? "no MPI" : library.version,
                    ", which one rank does not need");
    }
    return library.transport.empty()
               ? library.version
               : text(library.version, ", messages by ", transport_words(library));
}

}  // namespace nearstep::mpi

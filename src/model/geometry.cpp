#include "model/geometry.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "model/architecture.hpp"

#include <algorithm>
#include <array>

namespace nearstep::model {

namespace {

// The random stream of initial values, separate from other uses of the run's seed.
constexpr std::uint64_t kStartStream = 0x7374617274;

struct Size {
    const char* key;
    int value;
};

void check_sizes(const config::ModelSettings& settings) {
    const std::array<Size, 5> sizes{{{"layers", settings.layers},
                                     {"heads", settings.heads},
                                     {"width", settings.width},
                                     {"context", settings.context},
                                     {"vocabulary", settings.vocabulary}}};
    for (const Size& size : sizes) {
        if (size.value < 1) {
            throw ConfigError(
                text("model.", size.key, " is ", size.value, ": set it to 1 or more."));
        }
    }
}

}  // namespace

Geometry describe(const config::ModelSettings& settings) {
    const Architecture& architecture = find_architecture(settings.architecture);
    check_sizes(settings);
    return architecture.describe(settings);
}

void fill_start_values(const Geometry& geometry, std::uint64_t seed, std::size_t begin,
                       std::span<float> values) {
    const std::size_t end = begin + values.size();
    for (const Parameter& parameter : geometry.parameters) {
        const std::size_t first = std::max(begin, parameter.offset);
        const std::size_t last = std::min(end, parameter.offset + parameter.elems);
        for (std::size_t i = first; i < last; ++i) {
            const double noise =
                parameter.start.deviation > 0 ? random_normal(seed, kStartStream, i) : 0.0;
            values[i - begin] =
                static_cast<float>(parameter.start.value + parameter.start.deviation * noise);
        }
    }
}

}  // namespace nearstep::model

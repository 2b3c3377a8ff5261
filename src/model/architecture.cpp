#include "model/architecture.hpp"

#include "base/error.hpp"
#include "model/gpt.hpp"

#include <array>
#include <utility>

namespace nearstep::model {

namespace {

constexpr std::array<Architecture, 1> kArchitectures{{
    {"gpt", describe_gpt, make_gpt_functions},
}};

}  // namespace

const Architecture& find_architecture(const std::string& name) {
    std::string known;
    for (const Architecture& architecture : kArchitectures) {
        if (architecture.name == name) {
            return architecture;
        }
        known += text(known.empty() ? "" : ", ", '"', architecture.name, '"');
    }
    throw ConfigError(text("model.architecture is \"", name,
                           "\", which nearstep does not have: choose ", known, "."));
}

void append_block(Geometry& geometry, std::string name) {
    const std::size_t parameters = geometry.parameters.size();
    geometry.blocks.push_back({.name = std::move(name),
                               .begin = geometry.elems,
                               .end = geometry.elems,
                               .first_parameter = parameters,
                               .last_parameter = parameters});
}

void append_parameter(Geometry& geometry, std::string name, std::vector<std::int64_t> shape,
                      Start start) {
    std::size_t elems = 1;
    for (const std::int64_t extent : shape) {
        elems *= static_cast<std::size_t>(extent);
    }
    geometry.parameters.push_back({.name = std::move(name),
                                   .shape = std::move(shape),
                                   .offset = geometry.elems,
                                   .elems = elems,
                                   .start = start});
    geometry.elems += elems;
    geometry.blocks.back().end = geometry.elems;
    geometry.blocks.back().last_parameter = geometry.parameters.size();
}

}  // namespace nearstep::model

// Config, site and overrides, then ranks, hosts and batch system variables derived from them.
#include "base/error.hpp"
#include "config/hosts.hpp"
#include "config/load.hpp"
#include "fuzz.hpp"

#include <algorithm>

namespace nearstep::fuzz {

namespace {

constexpr const char* kConfig =
    "name = \"x\"\nmode = \"su+o+c\"\n[model]\nlayers = 2\nheads = 2\nwidth = 64\n[data]\n"
    "train = [\"a\", \"b\"]\n[train]\nlearning_rate = 1e-3\nseed = 0x10\n[csd]\nper_rank = [2, "
    "1]\n";
constexpr const char* kSite =
    "[site]\nname = \"s\"\n[hosts]\nnames = [\"a\", \"b\"]\nranks = 2\n[csd]\npath = [\"p\", "
    "\"q\"]\n"
    "[link]\ndevice_read_gb_s = 3.0\n";

std::string input_of(std::string_view config, std::string_view site, std::string_view granted,
                     std::string_view override) {
    return Output()
        .number(std::uint8_t{0})
        .number(std::uint8_t{2})
        .part(config)
        .part(site)
        .part(granted)
        .part(override);
}

}  // namespace

std::vector<std::string> seeds() {
    config::RunSettings run;
    run.data.train = {"a"};
    return {input_of(kConfig, kSite, "0-1,3", "train.steps=3"),
            input_of(config::print(run), "", "", "csd.path=[a, b]"),
            input_of("", "", "1", "a.b=1")};
}

void read(Bytes bytes) {
    Input input(bytes);
    config::Sources sources;
    sources.config_path = "config.toml";
    sources.needs_data = input.flag();
    const int ranks = 1 + static_cast<int>(input.choice(8));
    sources.config_text = input.part();
    sources.site_text = input.part();
    sources.site_path = sources.site_text.empty() ? "" : "site/site.toml";
    const std::string granted = input.part();
    while (!input.is_at_end()) {
        sources.overrides.push_back(input.part());
    }
    const config::RunSettings run = config::parse(sources);
    const std::string printed = config::print(run);
    config::Sources again{.config_path = "config.toml"};
    for (const config::TomlEntry& entry : config::read_toml("printed", printed)) {
        if (!entry.is_section) {
            again.overrides.push_back(entry.key + '=' + written(entry.value));
        }
    }
    again.needs_data = sources.needs_data;
    require(config::print(config::parse(again)) == printed, "printed settings read back the same");
    config::validate_for_ranks(run, ranks);
    const std::vector<config::HostPart> parts = config::plan_hosts(run, ranks);
    const int devices = config::devices_per_rank(run, ranks).front();
    const std::vector<int> places =
        config::places_of_devices(run, 0, std::max(devices, 0), granted);
    require(!places.empty() && std::all_of(places.begin(), places.end(),
                                           [&](int place) {
                                               return place >= 0 &&
                                                      place < static_cast<int>(run.csd.path.size());
                                           }),
            "places are folders of csd.path");
}

}  // namespace nearstep::fuzz

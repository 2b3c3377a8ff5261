// Reads rates of links from settings. Used by the engine, which emulates them, and by predictions.
#include "plan/link_rates.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

namespace nearstep::plan {

shaping::Rates rates_of(const config::LinkSettings& settings) {
    if (!settings.are_shaped()) {
        return {};
    }
    const double scale = settings.scale * 1e9;
    return {.device_read = settings.device_read_gb_s * scale,
            .device_write = settings.device_write_gb_s * scale,
            .host = settings.host_gb_s * scale,
            .host_total = settings.host_total_gb_s * scale,
            .network = settings.network_gb_s * scale};
}

double update_rate_of(const config::EngineSettings& settings) {
    return settings.mode == config::Mode::base
               ? 0
               : settings.csd.update_mparam_s * 1e6 * settings.link.factor();
}

double gpu_bytes_of_node(const config::LinkSettings& link, int ranks, double vector_bytes) {
    if (link.gpu_traffic == config::GpuLinkUse::apart) {
        return 0;
    }
    return link.gpu_traffic == config::GpuLinkUse::whole ? vector_bytes * ranks : vector_bytes;
}

std::string describe_links(const config::EngineSettings& settings) {
    const shaping::Rates rates = rates_of(settings.link);
    std::string out;
    const auto add = [&out](const char* name, double rate) {
        if (rate > 0) {
            out += text(out.empty() ? "" : ", ", name, " ", human_bytes(rate), "/s");
        }
    };
    add("device read", rates.device_read);
    add("device write", rates.device_write);
    add("host link each way", rates.host);
    add("host link both ways", rates.host_total);
    add("network", rates.network);
    if (update_rate_of(settings) > 0) {
        out +=
            text(out.empty() ? "" : ", ", "engine ", update_rate_of(settings) / 1e6, " Mparam/s");
    }
    return out.empty() ? ""
                       : text("shaped links (real transfers, delayed; rates x ",
                              settings.link.factor(), "): ", out);
}

}  // namespace nearstep::plan

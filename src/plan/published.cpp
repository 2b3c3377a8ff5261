// Evaluates published formulas of traffic. Used by plan/plan_report.cpp and
// report/traffic_report.cpp.
#include "plan/published.hpp"

#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/units.hpp"
#include "plan/formulas.hpp"
#include "plan/numbers.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::plan {

namespace {

constexpr int kManySlots = std::numeric_limits<int>::max();

std::string seconds_text(double value) { return three_digits(value) + " s"; }

}  // namespace

SharedBytes paper_bytes(Method method, double volume, int nodes) {
    constexpr double kModel = 2;              // M, bytes per parameter
    constexpr double kState = 6 * kModel;     // fp32 master and two moments
    constexpr double kGradient = 2 * kModel;  // fp32
    constexpr double kParameter = 2 * kModel;
    const double others = nodes - 1.0;
    switch (method) {
        case Method::zero_infinity:
            return {.host_link = 2 * (kState + kGradient),
                    .network = others * (kModel + 2 * kModel)};
        case Method::smart_update:
            return {.host_link = kGradient + kParameter, .network = others * (kModel + kModel)};
        case Method::smart_comp:
            return {.host_link = volume * kGradient + kParameter,
                    .network = others * (volume * kGradient + kModel)};
    }
    return {};
}

Replication replication_of(const Problem& problem, const Choice& choice, const Terms& terms) {
    const Numbers numbers(problem, choice);
    const Site& site = problem.site;
    const double parameters = numbers.parameters * numbers.copies / problem.homes();  // of one node
    const DeviceTime device = {.read = problem.work.state_bytes / site.device_read,
                               .engine = seconds(1, site.device_updates),
                               .write = problem.work.state_bytes / site.device_write};
    Replication out;
    out.n = problem.most_csds();
    out.opt = parameters * device.per_parameter(problem.work.is_serial, kManySlots);
    out.param_swap = parameters * numbers.new_bytes / site.device_read;
    out.b_pcie =
        site.host_link_total > 0 ? std::min(site.host_link, site.host_link_total) : site.host_link;
    out.b_ssd = site.device_read;
    out.opt_n =
        std::max(out.opt / out.n, out.param_swap / std::min<double>(out.n, out.b_pcie / out.b_ssd));
    out.fwd = terms.fwd;
    out.bwd = terms.bwd;
    out.total_n = out.fwd + out.bwd + out.opt_n;
    return out;
}

std::string describe(const Replication& r) {
    return text(
        "    T_opt,n = max(T_opt / n, T_param_swap / min(n, B_PCIe / B_SSD)) = max(",
        seconds_text(r.opt), " / ", r.n, ", ", seconds_text(r.param_swap), " / min(", r.n, ", ",
        human_bytes(r.b_pcie), "/s / ", human_bytes(r.b_ssd), "/s)) = ", seconds_text(r.opt_n),
        "\n    T_total,n = T_fwd + T_bwd + T_opt,n = ", seconds_text(r.fwd), " + ",
        seconds_text(r.bwd), " + ", seconds_text(r.opt_n), " = ", seconds_text(r.total_n), "\n");
}

}  // namespace nearstep::plan

#include "plan/replication.hpp"

#include "base/error.hpp"
#include "base/units.hpp"
#include "plan/numbers.hpp"
#include "plan/step_time.hpp"

#include <iomanip>
#include <sstream>

namespace nearstep::plan {

namespace {

std::string seconds_text(double value) {
    std::ostringstream out;
    out << std::setprecision(3) << value << " s";
    return out.str();
}

}  // namespace

Replication replication_of(const Problem& problem, const Choice& choice, const Terms& terms) {
    const Numbers numbers(problem, choice);
    const Site& site = problem.site;
    const double parameters = numbers.parameters * numbers.copies / problem.nodes;  // of one node
    const StepBytes bytes = {.parameters = parameters,
                             .state = parameters * problem.work.state_bytes,
                             .new_parameters = parameters * numbers.new_bytes};
    const LinkRates rates = {.device_read = site.device_read,
                             .device_write = site.device_write,
                             .host = site.host_link,
                             .host_total = site.host_link_total,
                             .updates = site.device_updates};
    const Handler handler = problem.work.is_serial ? Handler::serial : Handler::overlapped;
    Replication out;
    out.n = site.csds;
    out.opt = update_seconds_of_one(bytes, rates, handler);
    out.param_swap = bytes.new_parameters / site.device_read;
    out.b_pcie = site.host_link;
    out.b_ssd = site.device_read;
    out.opt_n = update_seconds(bytes, rates, handler, out.n);
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

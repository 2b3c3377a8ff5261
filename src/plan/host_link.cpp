#include "plan/host_link.hpp"

#include "plan/formulas.hpp"

#include <algorithm>

namespace nearstep::plan {

namespace {

// `most`: in the fuller direction; `both`: in both together.
double link_seconds(const Site& site, double most, double both) {
    return std::max(seconds(most, site.host_link), seconds(both, site.host_link_total));
}

}  // namespace

double base_update_seconds(const Site& site, double state, double gradients) {
    const double read = state + gradients;
    return std::max({seconds(read, site.device_read) / site.csds,
                     seconds(state, site.device_write) / site.csds,
                     link_seconds(site, read, read + state)});
}

double base_gradient_seconds(const Site& site, double gradients) {
    return std::max(link_seconds(site, gradients, gradients),
                    seconds(gradients, site.device_write) / site.csds);
}

double gpu_forward_seconds(const Site& site, double of_gpus) {
    return link_seconds(site, of_gpus, of_gpus);
}

double gpu_backward_seconds(const Site& site, double of_gpus, double gradients) {
    const double down = of_gpus + gradients;
    return link_seconds(site, down, down + of_gpus);
}

}  // namespace nearstep::plan

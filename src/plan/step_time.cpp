#include "plan/step_time.hpp"

#include "base/error.hpp"
#include "plan/formulas.hpp"

#include <algorithm>
#include <limits>

namespace nearstep::plan {

double update_seconds_of_one(const StepBytes& bytes, const LinkRates& rates, Handler handler) {
    const double read = seconds(bytes.state, rates.device_read);
    const double compute = seconds(bytes.parameters, rates.updates);
    const double write = seconds(bytes.state, rates.device_write);
    return handler == Handler::serial ? read + compute + write : std::max({read, compute, write});
}

double update_seconds(const StepBytes& bytes, const LinkRates& rates, Handler handler,
                      int devices) {
    expects(devices > 0, "a node has a device");
    const double n = devices;
    const double update = update_seconds_of_one(bytes, rates, handler) / n;
    const double host = rates.host > 0 && rates.host_total > 0
                            ? std::min(rates.host, rates.host_total)
                            : std::max(rates.host, rates.host_total);
    if (rates.device_read <= 0) {  // B_SSD is no limit; only the host link is
        return std::max(update, seconds(bytes.new_parameters, host));
    }
    const double most = host > 0 ? host / rates.device_read : std::numeric_limits<double>::max();
    return std::max(update, seconds(bytes.new_parameters, rates.device_read) / std::min(n, most));
}

double fill_seconds(const StepBytes& bytes, const LinkRates& rates, int devices, double subgroups) {
    expects(devices > 0 && subgroups > 0, "a node has a device, and that a subgroup");
    return (update_seconds_of_one(bytes, rates, Handler::serial) -
            update_seconds_of_one(bytes, rates, Handler::overlapped)) /
           devices / subgroups;
}

double delivery_seconds(const StepBytes& bytes, const LinkRates& rates) {
    return std::max(seconds(bytes.new_parameters, rates.host),
                    seconds(bytes.new_parameters, rates.host_total));
}

double base_update_seconds(const StepBytes& bytes, const LinkRates& rates, int devices) {
    expects(devices > 0, "a node has a device");
    const double read = bytes.state + bytes.gradients_back;
    const double write = bytes.state;
    return std::max({seconds(read, rates.device_read) / devices,
                     seconds(write, rates.device_write) / devices, seconds(read, rates.host),
                     seconds(write, rates.host), seconds(read + write, rates.host_total)});
}

double gradient_seconds(const StepBytes& bytes, const LinkRates& rates) {
    return std::max(seconds(bytes.gradients, rates.host),
                    seconds(bytes.gradients, rates.host_total));
}

double base_gradient_seconds(const StepBytes& bytes, const LinkRates& rates, int devices) {
    expects(devices > 0, "a node has a device");
    return std::max(gradient_seconds(bytes, rates),
                    seconds(bytes.gradients, rates.device_write) / devices);
}

double gpu_forward_seconds(const StepBytes& bytes, const LinkRates& rates) {
    return std::max(seconds(bytes.of_gpus, rates.host), seconds(bytes.of_gpus, rates.host_total));
}

double gpu_backward_seconds(const StepBytes& bytes, const LinkRates& rates) {
    const double down = bytes.of_gpus + bytes.gradients;
    return std::max(seconds(down, rates.host), seconds(down + bytes.of_gpus, rates.host_total));
}

double network_seconds(double bytes, double messages, const LinkRates& rates) {
    return bytes > 0 ? seconds(bytes, rates.network) + messages * rates.network_latency_s : 0;
}

}  // namespace nearstep::plan

#include "plan/paper.hpp"

namespace nearstep::plan {

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

}  // namespace nearstep::plan

// Names the moments of each optimizer. Used by the engine's layout, the trainer and the Python
// binding.
#include "csd/optimizer.hpp"

#include "base/error.hpp"

namespace nearstep::csd {

const char* moments_of(Optimizer optimizer) {
    switch (optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
            return "Adam";
        case Optimizer::sgd:
            return "SGD";
        case Optimizer::adagrad:
            return "Adagrad";
        case Optimizer::lion:
            return "Lion";
    }
    throw ContractError("An optimizer has a value that no optimizer has.");
}

}  // namespace nearstep::csd

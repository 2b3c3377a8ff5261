#include "csd/optimizer.hpp"

#include "base/error.hpp"

namespace nearstep::csd {

const char* name_of(Optimizer optimizer) {
    switch (optimizer) {
        case Optimizer::adamw:
            return "adamw";
        case Optimizer::adam:
            return "adam";
        case Optimizer::sgd:
            return "sgd";
        case Optimizer::adagrad:
            return "adagrad";
        case Optimizer::lion:
            return "lion";
    }
    throw ContractError("An optimizer has a value that no optimizer has.");
}

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

Optimizer parse_optimizer(const std::string& name) {
    for (const Optimizer optimizer :
         {Optimizer::adamw, Optimizer::adam, Optimizer::sgd, Optimizer::adagrad, Optimizer::lion}) {
        if (name == name_of(optimizer)) {
            return optimizer;
        }
    }
    throw ConfigError(text("The optimizer \"", name,
                           R"(" is not known: use "adamw", "adam", "sgd", "adagrad" or "lion".)"));
}

}  // namespace nearstep::csd

// Reads the scaling of rotary positions, computes their angles. Used by llama.cpp and exports.
#include "model/rope.hpp"

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "config/value.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <string_view>

namespace nearstep::model {

namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(const std::string& why) {
    throw ConfigError(text("model.rope_scaling ", why,
                           ": write it as in a published config.json, or leave it empty."));
}

Json parse(const std::string& words) {
    if (is_nested_too_deeply(words)) {
        refuse("is nested too deeply");
    }
    Json json = Json::parse(words, nullptr, false);
    if (!json.is_object()) {
        refuse(text("is ", config::written(std::string_view(words)), ", which is no JSON object"));
    }
    for (auto item = json.begin(); item != json.end();) {
        item = item->is_null() ? json.erase(item) : std::next(item);
    }
    return json;
}

// The keys of one scaling. Every key must be asked for before end().
class Scaling {
public:
    explicit Scaling(const std::string& words) : json_(parse(words)) {
        for (const char* key : {"type", "rope_type"}) {  // the second one counts
            const auto found = json_.find(key);
            if (found != json_.end() && !found->is_string()) {
                refuse(text("has a ", key, " that is no text"));
            }
            type_ = found == json_.end() ? type_ : found->get<std::string>();
            json_.erase(key);
        }
    }

    const std::string& type() const { return type_; }

    bool has(const char* key) const { return json_.contains(key); }

    double number(const char* key, double least) {
        const auto found = json_.find(key);
        if (found == json_.end() || !found->is_number() || !(found->get<double>() >= least)) {
            refuse(text("of type ", config::written(std::string_view(type_)), " needs ", key,
                        ", a number of at least ", config::written(least)));
        }
        const double value = found->get<double>();
        json_.erase(key);
        return value;
    }

    double number(const char* key, double least, double otherwise) {
        return has(key) ? number(key, least) : otherwise;
    }

    bool flag(const char* key, bool otherwise) {
        const auto found = json_.find(key);
        if (found == json_.end()) {
            return otherwise;
        }
        if (!found->is_boolean()) {
            refuse(text("has a ", key, " that is neither true nor false"));
        }
        const bool value = found->get<bool>();
        json_.erase(key);
        return value;
    }

    void end() const {
        if (!json_.empty()) {
            refuse(text("of type ", config::written(std::string_view(type_)), " has the key ",
                        config::written(std::string_view(json_.begin().key())),
                        ", which nearstep does not know"));
        }
    }

private:
    Json json_;
    std::string type_ = "default";
};

constexpr double kSmallest = 1e-6;  // above 0, so that quotients stay finite

std::vector<double> frequencies_of(double theta, int elems) {
    std::vector<double> frequencies;
    for (int i = 0; i < elems; i += 2) {
        frequencies.push_back(std::pow(theta, -static_cast<double>(i) / elems));
    }
    return frequencies;
}

void scale_as_llama3(Scaling& scaling, int positions, std::vector<double>& frequencies) {
    const double factor = scaling.number("factor", 1);
    const double low = scaling.number("low_freq_factor", kSmallest);
    const double high = scaling.number("high_freq_factor", kSmallest);
    const double original = scaling.number("original_max_position_embeddings", 1, positions);
    if (low >= high) {
        refuse("of type \"llama3\" needs a high_freq_factor above its low_freq_factor");
    }
    for (double& frequency : frequencies) {
        // Turns in the original context: few of them mean a long wave, which is stretched.
        const double turns = original * frequency / (2 * std::numbers::pi);
        const double share = std::clamp((turns - low) / (high - low), 0.0, 1.0);
        frequency *= share + (1 - share) / factor;
    }
}

// 0.1 `weight` ln(factor) + 1 for factors above 1.
double yarn_scale(double factor, double weight) {
    return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

double yarn_factor(Scaling& scaling, double factor) {
    const double weight = scaling.number("mscale", 0, 0);
    const double weight_of_all = scaling.number("mscale_all_dim", 0, 0);
    const double otherwise = weight > 0 && weight_of_all > 0
                                 ? yarn_scale(factor, weight) / yarn_scale(factor, weight_of_all)
                                 : yarn_scale(factor, 1);
    return scaling.number("attention_factor", kSmallest, otherwise);
}

// Returns the factor of queries and keys.
double scale_as_yarn(Scaling& scaling, const config::ModelSettings& settings,
                     std::vector<double>& frequencies) {
    const double factor = scaling.number("factor", 1);
    const double original =
        scaling.number("original_max_position_embeddings", 1, settings.most_positions());
    const double fast = scaling.number("beta_fast", kSmallest, 32);
    const double slow = scaling.number("beta_slow", kSmallest, 1);
    const bool is_truncated = scaling.flag("truncate", true);
    const double elems = 2 * static_cast<double>(frequencies.size());
    // The index of the frequency that makes `turns` turns in the original context.
    const auto index_of = [&](double turns) {
        return elems * std::log(original / (turns * 2 * std::numbers::pi)) /
               (2 * std::log(settings.rope_theta));
    };
    double low = index_of(fast);
    double high = index_of(slow);
    if (is_truncated) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, elems - 1);
    high += low == high ? 0.001 : 0;  // as transformers does
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        frequencies[i] *= 1 - ramp + ramp / factor;
    }
    return yarn_factor(scaling, factor);
}

std::vector<double> dynamic_frequencies(Scaling& scaling, const config::ModelSettings& settings,
                                        int columns) {
    const double factor = scaling.number("factor", 1);
    const int elems = settings.width / settings.heads;
    if (elems < 4) {
        refuse("of type \"dynamic\" needs heads of 4 elements or more");
    }
    const double positions = settings.most_positions();
    const double length = std::max<double>(columns, positions);
    const double stretch = factor * length / positions - (factor - 1);
    const double power = static_cast<double>(elems) / (elems - 2);
    return frequencies_of(settings.rope_theta * std::pow(stretch, power), elems);
}

}  // namespace

Rope rope_of(const config::ModelSettings& settings, int columns) {
    Rope rope;
    std::vector<double> frequencies =
        frequencies_of(settings.rope_theta, settings.width / settings.heads);
    if (!settings.rope_scaling.empty()) {
        Scaling scaling(settings.rope_scaling);
        if (scaling.type() == "linear") {
            const double factor = scaling.number("factor", 1);
            std::ranges::for_each(frequencies, [&](double& each) { each /= factor; });
        } else if (scaling.type() == "dynamic") {
            frequencies = dynamic_frequencies(scaling, settings, columns);
        } else if (scaling.type() == "llama3") {
            scale_as_llama3(scaling, settings.most_positions(), frequencies);
        } else if (scaling.type() == "yarn") {
            rope.factor = scale_as_yarn(scaling, settings, frequencies);
        } else if (scaling.type() != "default") {
            refuse(text("has the rope_type ", config::written(std::string_view(scaling.type())),
                        R"(, not "linear", "dynamic", "llama3" or "yarn")"));
        }
        scaling.end();
    }
    rope.frequencies.assign(frequencies.begin(), frequencies.end());
    return rope;
}

std::string rope_scaling_on_one_line(const config::ModelSettings& settings) {
    return settings.rope_scaling.empty()
               ? ""
               : parse(settings.rope_scaling)
                     .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace nearstep::model

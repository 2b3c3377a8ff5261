// Refuses combinations of keys that no run can use. Called by load.cpp.
#include "config/checks.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "config/load.hpp"
#include "config/value.hpp"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace nearstep::config {

namespace {

// Formats a value with its name and origin: "train.steps = 40 (configs/tiny.toml, line 9)". Without
// any origins it names none.
class Given {
public:
    explicit Given(const Origins& origins) : origins_(origins) {}

    std::string operator()(const std::string& key, const std::string& value) const {
        if (origins_.empty()) {
            return text(name_of_key(key), " = ", value);
        }
        const auto origin = origins_.find(key);
        return text(name_of_key(key), " = ", value, " (",
                    origin == origins_.end() ? "the default" : origin->second, ")");
    }
    std::string operator()(const std::string& key, double value) const {
        return (*this)(key, written(value));
    }

private:
    const Origins& origins_;
};

std::string quoted(const std::string& word) { return written(std::string_view(word)); }

template <Worded E>
std::string quoted(E value) {
    return quoted(std::string(name_of(value)));
}

void check_training(const RunSettings& run, const Given& given) {
    const TrainSettings& train = run.train;
    refuse_if(train.stop_at > train.steps,
              text(given("train.stop_at", std::to_string(train.stop_at)), " is more than ",
                   given("train.steps", std::to_string(train.steps)),
                   ": lower it, or raise train.steps."));
    refuse_if(
        run.checkpoint.every > 0 && run.csd.durability == Durability::none,
        text(given("checkpoint.every", std::to_string(run.checkpoint.every)),
             " asks for checkpoints, but ", given("csd.durability", quoted(run.csd.durability)),
             " makes none: set ", Term::durability,
             " = \"step\" or \"checkpoint\", or checkpoint.every = "
             "0."));
    const std::string delayed = given("train.clipping", quoted(train.clipping));
    refuse_if(train.clipping == Clipping::delayed && train.clip_norm == 0,
              text(delayed, " has nothing to clip to with ", given("train.clip_norm", "0"),
                   ": set ", Term::clip_norm, " above 0, or ", Term::clipping, " = \"exact\"."));
    refuse_if(train.clipping == Clipping::delayed && run.model.dtype == Dtype::fp16,
              text(delayed, " does not go with ", given("model.dtype", quoted("fp16")),
                   ", whose loss scale is found by steps that are skipped: set ", Term::model_dtype,
                   " = "
                   "\"bf16\", or ",
                   Term::clipping, " = \"exact\"."));
}

void check_codec(const RunSettings& run, const Given& given) {
    refuse_if(run.mode != Mode::su_o_c && run.compress.codec != PayloadCodec::dense,
              text(given("compress.codec", quoted(run.compress.codec)),
                   " belongs to mode \"su+o+c\", not to ", given("mode", quoted(run.mode)),
                   R"(: set mode = "su+o+c", or )", Term::codec, R"( = "dense".)"));
    const bool is_dense = run.compress.codec == PayloadCodec::dense;
    const std::string codec = given("compress.codec", quoted(run.compress.codec));
    refuse_if(
        run.compress.rounding == arith::Rounding::stochastic && !has_codes(run.compress.codec),
        text(given("compress.rounding", quoted(run.compress.rounding)), " does not fit ", codec,
             R"(: set compress.rounding = "nearest", or the codec q8 or q4.)"));
    refuse_if(run.compress.error_feedback && is_dense,
              text(given("compress.error_feedback", "true"), " has nothing to add with ", codec,
                   ": set it to false, or another codec."));
    refuse_if(run.compress.error_feedback && run.csd.durability == Durability::step,
              text(given("compress.error_feedback", "true"), " does not go with ",
                   given("csd.durability", quoted(run.csd.durability)),
                   ", because what is added lies in checkpoints only: set ", Term::durability,
                   " = "
                   "\"checkpoint\"."));
    refuse_if(
        run.compress.warmup_steps > 0 && is_dense,
        text(given("compress.warmup_steps", std::to_string(run.compress.warmup_steps)),
             " does not fit ", codec, ", which is dense anyway: set it to 0, or another codec."));
}

void check_transport(const RunSettings& run, const Given& given) {
    refuse_if(run.exchange.transport == GpuPath::nccl && run.compress.error_feedback,
              text(given("exchange.transport", quoted(run.exchange.transport)),
                   " does not go with ", given("compress.error_feedback", "true"),
                   ", for which gradients come to the host: set exchange.transport = \"mpi\"."));
}

void check_gather(const RunSettings& run, const Given& given) {
    const bool has_deltas = run.gather.codec == ParameterCodec::delta;
    refuse_if(has_deltas && run.mode == Mode::base,
              text(given("gather.codec", quoted("delta")), " does not go with ",
                   given("mode", quoted(run.mode)),
                   ", which reproduces ZeRO-Infinity: set gather.codec = \"dense\", or another "
                   "mode."));
    refuse_if(has_deltas && size_bytes(run.model.dtype) != 2,
              text(given("gather.codec", quoted("delta")), " is for 16-bit parameters, not for ",
                   given("model.dtype", quoted(run.model.dtype)), ": set ", Term::model_dtype,
                   " = \"bf16\" or \"fp16\", or gather.codec = \"dense\"."));
}

void check_slots(const RunSettings& run, const Given& given) {
    refuse_if(
        run.csd.slots == 1 || run.csd.slots == 2,
        text(given("csd.slots", run.csd.slots),
             " does not let a device read, update and write at once: give at least 3, or 0."));
}

void check_links(const RunSettings& run, const Given& given) {
    refuse_if(run.link.scale != 1 && run.link.scale > 0 && !run.link.are_shaped() &&
                  run.csd.update_mparam_s == 0,
              text(given("link.scale", run.link.scale),
                   " scales rates of which none is set: set link.device_read_gb_s, "
                   "link.device_write_gb_s, link.host_gb_s or link.network_gb_s, or link.scale = "
                   "1."));
    constexpr double kLeast = 1e-6;  // GB/s: slower than any drive, yet times stay finite
    for (const auto& [key, rate] : std::initializer_list<std::pair<const char*, double>>{
             {"link.device_read_gb_s", run.link.device_read_gb_s},
             {"link.device_write_gb_s", run.link.device_write_gb_s},
             {"link.host_gb_s", run.link.host_gb_s},
             {"link.host_total_gb_s", run.link.host_total_gb_s},
             {"link.network_gb_s", run.link.network_gb_s}}) {
        refuse_if(rate > 0 && rate * run.link.factor() < kLeast,
                  text(given(key, rate), " times ", given("link.scale", run.link.scale),
                       " is less than 1 kB/s: raise one of them, or set the rate to 0 to shape "
                       "nothing."));
    }
}

void check_cards(const RunSettings& run, const Given& given) {
    if (run.csd.device != DeviceKind::xrt) {
        return;
    }
    const std::string device = given("csd.device", quoted(run.csd.device));
    std::string cards;
    for (const std::string& card : run.csd.cards) {
        cards += (cards.empty() ? "" : ", ") + quoted(card);
    }
    refuse_if(!run.csd.cards.empty() && run.csd.cards.size() != run.csd.path.size(),
              text(given("csd.cards", "[" + cards + "]"), " is for ", run.csd.path.size(),
                   " folders of ", Term::path, ": name the card beside each folder, or none."));
    refuse_if(run.link.are_shaped() || run.csd.update_mparam_s > 0,
              text(device, " moves at the rates of its cards, but rates of [link] or ",
                   given("csd.update_mparam_s", run.csd.update_mparam_s),
                   " are set: set them to 0, or csd.device = \"emulated\"."));
}

void check_tier(const RunSettings& run, const Given& given, const std::string& key,
                const std::optional<double>& tier) {
    if (!is_used(tier)) {
        return;
    }
    const std::string used = given(key, tier ? written(*tier) : quoted("auto"));
    refuse_if(
        run.mode == Mode::base,
        text(used, " does not go with ", given("mode", quoted(run.mode)),
             ", which stripes the state over all drives: set ", key, " = 0, or another mode."));
    refuse_if(run.csd.device == DeviceKind::xrt,
              text(used, " does not go with ", given("csd.device", quoted(run.csd.device)),
                   ", whose state lies beside its cards: set ", key, " = 0."));
}

void check_tiers(const RunSettings& run, const Given& given) {
    check_tier(run, given, "csd.tiers.memory", run.csd.tiers.memory);
    check_tier(run, given, "csd.tiers.gpu", run.csd.tiers.gpu);
    const std::optional<double>& gpu = run.csd.tiers.gpu;
    // An automatic tier takes no GPU memory with this durability.
    refuse_if(gpu && *gpu > 0 && run.csd.durability == Durability::step,
              text(given("csd.tiers.gpu", *gpu), " does not go with ",
                   given("csd.durability", quoted(run.csd.durability)),
                   ", since GPU memory survives nothing: set ", Term::durability,
                   " to \"checkpoint\", or csd.tiers.gpu = 0."));
    refuse_if(is_used(gpu) && run.gather.codec == ParameterCodec::delta,
              text(given("csd.tiers.gpu", gpu ? written(*gpu) : quoted("auto")),
                   " does not go with ", given("gather.codec", quoted(run.gather.codec)),
                   ", which the host computes: set one of them to its default."));
}

void check_log(const RunSettings& run, const Given& given) {
    if (run.csd.log.empty()) {
        refuse_if(run.csd.log_gb > 0, text(given("csd.log_gb", run.csd.log_gb),
                                           " limits logs that there are none of: set ", Term::log,
                                           ", or leave it out."));
        return;
    }
    const std::string log = given("csd.log", quoted(run.csd.log.front()));
    const auto expect_other = [&](bool is_wrong, const std::string& with, const char* instead) {
        refuse_if(is_wrong, text(log, " does not go with ", with, ": leave ", Term::log,
                                 " out, or set ", instead, "."));
    };
    expect_other(run.csd.durability != Durability::step,
                 given("csd.durability", quoted(run.csd.durability)), "it to \"step\"");
    expect_other(run.mode == Mode::base, given("mode", quoted(run.mode)), "another mode");
    expect_other(run.csd.device == DeviceKind::xrt, given("csd.device", quoted(run.csd.device)),
                 "it to \"emulated\"");
    expect_other(is_used(run.csd.tiers.memory) || is_used(run.csd.tiers.gpu),
                 "csd.tiers, because all state is in memory then", "them to 0");
    expect_other(run.link.are_shaped() || run.csd.update_mparam_s > 0,
                 "rates of [link] or csd.update_mparam_s", "them to 0");
}

// The launchers' scripts take a host's name as one word, which is no option of ssh's.
bool is_host(const std::string& name) {
    return !name.starts_with('-') && std::ranges::all_of(name, [](unsigned char sign) {
        return std::isalnum(sign) != 0 || sign >= 0x80 ||
               std::string_view("._-:@%[]").find(static_cast<char>(sign)) != std::string_view::npos;
    });
}

void check_hosts(const RunSettings& run, const Given& given) {
    const auto check = [&](const char* key, const std::string& name) {
        refuse_if(!is_host(name), text(given(key, quoted(name)),
                                       " is no name of a host: give each host's name as ssh takes "
                                       "it, without spaces."));
    };
    const auto check_all = [&](const char* key, const std::vector<std::string>& names) {
        std::set<std::string> before;
        for (const std::string& name : names) {
            check(key, name);
            refuse_if(name.find(':') != std::string::npos,
                      text(given(key, quoted(name)),
                           " has a colon, behind which mpirun takes a number of slots: give an "
                           "address of IPv6 a name in /etc/hosts, and say ranks in hosts.ranks."));
            refuse_if(!before.insert(name).second,
                      text(given(key, quoted(name)),
                           " names that host twice: name each host once, and say in hosts.ranks "
                           "how many ranks it takes."));
        }
    };
    check_all("hosts.names", run.hosts.names);
    check_all("hosts.storage", run.hosts.storage);
    check("hosts.head", run.hosts.head);
}

void check_options(const RunSettings& run, const Given& given) {
    const HostsSettings& hosts = run.hosts;
    using Options = std::pair<const char*, const std::vector<std::string>*>;
    for (const auto& [key, options] :
         {Options("hosts.mpirun_options", &hosts.mpirun_options),
          Options("hosts.sbatch_options", &hosts.sbatch_options),
          Options("hosts.storage_sbatch_options", &hosts.storage_sbatch_options)}) {
        for (const std::string& option : *options) {
            const std::size_t end = option.find_first_of(" =");
            refuse_if(option.starts_with('-') && end != option.npos && option[end] == ' ',
                      text(given(key, quoted(option)),
                           " has several words in one text: write each word as a text of its own, "
                           "as in [\"--mca\", \"pml\", \"ucx\"]."));
        }
    }
}

int devices_of(const std::vector<int>& per_rank) {
    return std::accumulate(per_rank.begin(), per_rank.end(), 0);
}

// Refuses keys that only a llama has.
void check_no_llama_keys(const ModelSettings& model, const Given& given) {
    const std::string other = text(" is for model.architecture = \"llama\", not for ",
                                   quoted(model.architecture), ": leave it out.");
    refuse_if(model.key_heads() != model.heads, given("model.kv_heads", model.kv_heads) + other);
    refuse_if(model.qkv_bias, given("model.qkv_bias", "true") + other);
    refuse_if(model.rope_theta != ModelSettings().rope_theta,
              given("model.rope_theta", model.rope_theta) + other);
    refuse_if(!model.rope_scaling.empty(),
              given("model.rope_scaling", quoted(model.rope_scaling)) + other);
}

}  // namespace

void refuse_if(bool is_wrong, const std::string& sentence) {
    if (is_wrong) {
        throw ConfigError(sentence);
    }
}

void check_model(const ModelSettings& model, const Origins& origins) {
    const Given given(origins);
    const std::string heads = given("model.heads", model.heads);
    refuse_if(model.width % model.heads != 0,
              text(given("model.width", model.width), " is not a multiple of ", heads,
                   ": choose heads that divide the width."));
    refuse_if(model.heads % model.key_heads() != 0,
              text(heads, " is not a multiple of ", given("model.kv_heads", model.kv_heads),
                   ": choose heads of keys and values that divide the heads."));
    if (!model.is_llama()) {
        check_no_llama_keys(model, given);
        refuse_if(model.context > model.most_positions(),
                  text(given("model.context", model.context), " is more than ",
                       given("model.positions", model.positions),
                       ", and this model has no further positions: lower model.context."));
        return;
    }
    refuse_if(model.width / model.heads % 2 != 0,
              text(given("model.width", model.width), " gives each of ", heads, " ",
                   model.width / model.heads,
                   " elements, which rotary positions cannot pair: choose heads that get an even "
                   "number."));
}

void check_combinations(const RunSettings& run, const Origins& origins) {
    const Given given(origins);
    check_model(run.model, origins);
    check_training(run, given);
    check_codec(run, given);
    check_transport(run, given);
    check_gather(run, given);
    check_slots(run, given);
    check_links(run, given);
    check_cards(run, given);
    check_tiers(run, given);
    check_log(run, given);
    check_hosts(run, given);
    check_options(run, given);
}

void check_data(const RunSettings& run, const Origins& origins) {
    const Given given(origins);
    refuse_if(run.data.train.empty(),
              text("data.train is empty, so there is nothing to train on: name a file or folder of "
                   "text in ",
                   run.name.empty() ? "the config" : on_one_line(run.name) + ".toml", " or with ",
                   Term::origin, " data.train=FILE."));
    refuse_if(run.data.valid.empty() && run.data.valid_share <= 0,
              text(given("data.valid_share", run.data.valid_share),
                   " holds no text out for the evaluation: raise it, or set data.valid."));
}

int computing_ranks(const EngineSettings& settings, int ranks) {
    expects(ranks > 0, "there is at least one rank");
    const int storage = settings.csd.storage_ranks;
    refuse_if(storage >= ranks,
              text("csd.storage_ranks = ", storage, " leaves none of the ", ranks,
                   ranks == 1 ? " rank" : " ranks", " to compute: start more ranks, or lower it."));
    return ranks - storage;
}

std::vector<int> drives_per_rank(const EngineSettings& settings, int ranks) {
    const int computing = computing_ranks(settings, ranks);
    const std::vector<int>& given = settings.csd.per_rank;
    const auto count = static_cast<std::size_t>(ranks);
    refuse_if(given.size() != 1 && given.size() != count,
              text(Term::per_rank, " has ", given.size(), " entries for ", ranks,
                   " ranks: give one number for all ranks, or one for each."));
    std::vector<int> devices =
        given.size() == count ? given : std::vector<int>(count, given.front());
    if (given.size() == 1 && computing < ranks) {
        std::fill_n(devices.begin(), computing, 0);
    }
    refuse_if(std::ranges::any_of(devices, [](int number) { return number < 0; }),
              text(Term::per_rank, " has a negative entry: give each rank 0 devices or more."));
    refuse_if(devices_of(devices) == 0, text(Term::per_rank, " gives none of the ", ranks,
                                             " ranks a device: give at least one rank one."));
    const auto idle = std::find(devices.begin() + computing, devices.end(), 0);
    refuse_if(idle != devices.end(),
              text("Rank ", idle - devices.begin(), " is one of the last ", ranks - computing,
                   " (csd.storage_ranks), which compute nothing, and ", Term::per_rank,
                   " gives it no device: give it some, or lower csd.storage_ranks."));
    return devices;
}

std::vector<std::vector<Tier>> tiers_per_rank(const EngineSettings& settings, int ranks) {
    const int computing = computing_ranks(settings, ranks);
    std::vector<std::vector<Tier>> tiers;
    for (const int drives : drives_per_rank(settings, ranks)) {
        const bool computes = std::ssize(tiers) < computing;
        std::vector<Tier>& of_rank = tiers.emplace_back(drives, Tier::drive);
        if (drives > 0 && is_used(settings.csd.tiers.memory)) {
            of_rank.push_back(Tier::memory);
        }
        if (computes && is_used(settings.csd.tiers.gpu)) {
            of_rank.push_back(Tier::gpu);
        }
    }
    return tiers;
}

std::vector<int> devices_per_rank(const EngineSettings& settings, int ranks) {
    std::vector<int> devices;
    for (const std::vector<Tier>& of_rank : tiers_per_rank(settings, ranks)) {
        devices.push_back(static_cast<int>(of_rank.size()));
    }
    return devices;
}

std::vector<double> device_speeds(const EngineSettings& settings, int ranks) {
    const std::vector<double>& given = settings.csd.speed;
    const auto drives = static_cast<std::size_t>(devices_of(drives_per_rank(settings, ranks)));
    refuse_if(given.size() > 1 && given.size() != drives,
              text("csd.speed has ", given.size(), " entries for ", drives, " devices of ", ranks,
                   " ranks: give one number for all devices, or one for each."));
    std::vector<double> speeds;
    std::size_t drive = 0;
    for (const std::vector<Tier>& of_rank : tiers_per_rank(settings, ranks)) {
        for (const Tier tier : of_rank) {
            const bool is_given = tier == Tier::drive && !given.empty();
            speeds.push_back(is_given ? given[given.size() == drives ? drive : 0] : 1.0);
            drive += tier == Tier::drive ? 1 : 0;
        }
    }
    return speeds;
}

void validate_for_ranks(const RunSettings& run, int ranks) {
    const int computing = computing_ranks(run, ranks);
    refuse_if(computing > run.train.global_batch,
              text("train.global_batch = ", run.train.global_batch, " leaves some of ", computing,
                   " ranks without a sequence: raise it to ", computing, " or start fewer ranks."));
    static_cast<void>(device_speeds(run, ranks));  // also checks csd.per_rank
    const int devices = devices_of(drives_per_rank(run, ranks));
    for (const int device : run.csd.host_engine) {
        refuse_if(device >= devices,
                  text("csd.host_engine names device ", device, ", but ", ranks,
                       " ranks have devices 0 to ", devices - 1, ": name some of these."));
    }
}

}  // namespace nearstep::config

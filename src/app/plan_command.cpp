// The command plan. Used by commands.cpp.
#include "app/commands.hpp"
#include "app/placement.hpp"
#include "base/error.hpp"
#include "config/load.hpp"
#include "plan/calibration.hpp"
#include "plan/kept_state.hpp"
#include "plan/named_choice.hpp"
#include "plan/plan_report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::app {

namespace {

struct PlanArguments {
    RunArguments run;
    std::vector<int> nodes = {1};
    std::vector<int> storage_nodes;
    std::vector<int> csds;
    std::vector<std::string> codecs = {"dense", "q8", "q4"};
    std::string scaling = "strong";
    std::string calibration;
    bool is_trained = false;
    std::vector<std::string> choices;
    std::string json;
};

// Mode su knows no codec, so that a plan for it would be trained in another mode.
std::vector<plan::Codec> codecs_of(const PlanArguments& arguments, config::Mode mode) {
    std::vector<plan::Codec> codecs;
    for (const std::string& name : arguments.codecs) {
        const auto codec = parse_word<plan::Codec>("gradient codec", name);
        if (codec == plan::Codec::automatic) {
            throw ConfigError("--codecs = auto leaves the choice to mode: name codecs.");
        }
        if (std::ranges::find(codecs, codec) != codecs.end()) {
            throw ConfigError(text("--codecs names ", name, " twice: name each codec once."));
        }
        codecs.push_back(codec);
    }
    if (mode == config::Mode::su) {
        std::erase_if(codecs, [](plan::Codec codec) { return codec != plan::Codec::dense; });
        if (codecs.empty()) {
            throw ConfigError(
                "mode = \"su\" encodes no gradient: add dense to --codecs, or set mode to "
                "\"su+o+c\".");
        }
    }
    return codecs;
}

config::RunSettings read_run(const PlanArguments& arguments) {
    config::Sources sources = read_sources(arguments.run);
    sources.needs_data = false;
    config::RunSettings run = config::parse(sources);
    if (run.mode == config::Mode::base) {
        throw ConfigError(
            "mode = \"base\" updates on the host, so that there is no placement on devices to "
            R"(plan: use mode = "su+o", "su+o+c" or "su".)");
    }
    std::vector<NamedPath> inputs = inputs_of(sources, run);
    inputs.push_back({"--calibrate", arguments.calibration});
    for (const std::string& path : arguments.choices) {
        inputs.push_back({"--choice", path});
    }
    check_apart({{"--json", arguments.json}}, inputs);
    return run;
}

// Takes the measured rates from --calibrate, else from the site.
plan::Calibration calibration_of(const PlanArguments& arguments, const config::RunSettings& run) {
    const std::string& path =
        arguments.calibration.empty() ? run.plan.calibration : arguments.calibration;
    if (path.empty()) {
        return {};
    }
    plan::Calibration calibration =
        plan::read_calibration(plan::read_calibration_lines(path), path);
    plan::expect_device(calibration, path, run.csd);
    return calibration;
}

// One line per rate that some of the plans use.
std::string describe(const plan::Calibration& calibration, const PlanArguments& arguments,
                     const config::RunSettings& run) {
    std::vector<std::string> lines;
    std::string all;
    for (const int nodes : arguments.nodes) {
        for (const std::string& line : plan::describe(calibration, run, nodes)) {
            if (std::ranges::find(lines, line) == lines.end()) {
                lines.push_back(line);
                all += line + "\n";
            }
        }
    }
    return all;
}

// The tiers that a plan may use: those that csd.durability allows, and what the run asks for.
config::Tiers may_use(const config::RunSettings& run) {
    config::Tiers tiers = tiers_of_run(run.csd);
    if (run.csd.durability != config::Durability::step) {
        for (std::optional<double>* tier : {&tiers.gpu, &tiers.memory}) {
            if (!config::is_used(*tier)) {
                tier->reset();
            }
        }
    }
    return tiers;
}

// A site without drives serves choices that all keep the state in GPU memory.
plan::StatePlaces places_of(const std::vector<plan::NamedChoice>& choices) {
    const bool is_resident =
        !choices.empty() && std::ranges::all_of(choices, [](const plan::NamedChoice& named) {
            return named.state == plan::StateHome::gpu;
        });
    return is_resident ? plan::StatePlaces::gpus_too : plan::StatePlaces::devices;
}

std::vector<plan::Row> make_plans(const PlanArguments& arguments) {
    const config::RunSettings run = read_run(arguments);
    const std::vector<plan::Codec> codecs = codecs_of(arguments, run.mode);
    const plan::ModelSize size = size_of(run.model);
    const plan::Calibration calibration = calibration_of(arguments, run);
    std::vector<plan::Row> rows;
    std::vector<plan::NamedChoice> choices;
    std::ranges::transform(arguments.choices, std::back_inserter(choices), plan::read_choice);
    for (const int nodes : arguments.nodes) {
        for (const int storage : arguments.storage_nodes.empty()
                                     ? std::vector{run.csd.storage_ranks}
                                     : arguments.storage_nodes) {
            const int all = nodes + storage;
            const plan::Site site =
                plan::site_of(plan::calibrated(run, calibration, all), all, places_of(choices));
            for (const int csds :
                 arguments.csds.empty() ? std::vector{site.csds} : arguments.csds) {
                const double batches = arguments.scaling == "weak" ? nodes : 1;
                plan::Problem problem{
                    .work = plan::workload_of(run, size, batches * run.train.global_batch),
                    .site = site,
                    .nodes = nodes,
                    .storage_nodes = storage};
                plan::set_keeping(run, problem.work);
                problem.site.csds = csds;
                if (!arguments.storage_nodes.empty()) {  // compares whole moves
                    problem.site.csds_beside = 0;
                }
                for (const plan::NamedChoice& named : choices) {
                    rows.push_back(plan::plan_for(problem, named, codecs));
                }
                if (!choices.empty()) {
                    continue;
                }
                plan::Space space = plan::space_of(problem, codecs);
                if (arguments.is_trained) {
                    keep_to_program(run, problem, space);
                }
                space.tiers = plan::tiers_of(may_use(run));
                rows.push_back(plan::plan_for(problem, space));
            }
        }
    }
    std::cout << "modelled: " << run.name << ", " << static_cast<double>(size.parameters)
              << " parameters, state " << name_of(run.csd.state) << ", on site " << run.site << ", "
              << arguments.scaling << " scaling\n"
              << describe(calibration, arguments, run)
              << (choices.empty() ? plan::describe(rows) : plan::describe_named(rows));
    return rows;
}

// Throws ConfigError, behind the table and the file, if nothing of what was asked for can be
// planned.
void print_plans(const PlanArguments& arguments) {
    std::vector<plan::Row> rows;
    write_result_of(
        [&] {
            rows = make_plans(arguments);
            return indented(plan::to_json(rows));
        },
        arguments.json);
    if (std::ranges::none_of(rows,
                             [](const plan::Row& row) { return row.found.plan.has_value(); })) {
        const plan::Row& row = rows.front();
        throw ConfigError(
            text("There is no plan (with ", row.problem.nodes,
                 row.problem.nodes == 1 ? " node: " : " nodes: ", plan::refusal_of(row),
                 "): ask for other numbers of nodes or devices, or for a smaller "
                 "model, or correct [plan] in the site file."));
    }
}

// Adds the options that say which choices are searched.
void add_space(CLI::App& command, PlanArguments& arguments) {
    const auto count = CLI::Range(1, 65536);
    command.add_option("--nodes", arguments.nodes, "numbers of nodes, with commas between")
        ->delimiter(',')
        ->check(count)
        ->capture_default_str();
    command
        .add_option("--storage-nodes", arguments.storage_nodes,
                    "numbers of storage nodes, which have all devices and no GPU, with commas "
                    "between; 0: devices in the nodes; default: csd.storage_ranks")
        ->delimiter(',')
        ->check(CLI::Range(0, 65536));
    command
        .add_option(
            "--csds", arguments.csds,
            "devices per node, or per storage node, with commas between; default: hosts.devices")
        ->delimiter(',')
        ->check(CLI::Range(1, 1024));
    command
        .add_option("--codecs", arguments.codecs,
                    "gradient codecs (compress.codec) that may be chosen, those to prefer first")
        ->delimiter(',')
        ->capture_default_str();
}

}  // namespace

void add_plan(CLI::App& program, Action& action) {
    auto arguments = std::make_shared<PlanArguments>();
    CLI::App& command = *program.add_subcommand(
        "plan",
        "Search for the fastest placement, formats and sizes with a model of the step's time; all "
        "that it prints is modelled. Example:\n  nearstep plan configs/gpt-7b.toml --site "
        "cluster/csd-pod --nodes 1,8,64");
    add_run_arguments(command, arguments->run);
    add_space(command, *arguments);
    command.add_option("--calibrate", arguments->calibration,
                       "result file of nearstep bench csd, bench network or both: its rates in "
                       "place of the site's; default: plan.calibration");
    command.add_flag(
        "--trained", arguments->is_trained,
        "only what nearstep train can be set to, and what placement.*, model.activations and "
        "exchange.densify say where they are not auto");
    command
        .add_option("--choice", arguments->choices,
                    "files that each name a choice and fix a part of it, such as those in "
                    "cluster/experiments/llama.choices: a line for the fastest plan of each")
        ->excludes("--trained");
    command
        .add_option("--scaling", arguments->scaling,
                    "train.global_batch is that of all nodes (strong), or of each (weak)")
        ->check(CLI::IsMember({"strong", "weak"}))
        ->capture_default_str();
    command.add_option("--json", arguments->json, "write an array with an object per plan");
    command.callback(
        [arguments, &action] { action = on_rank_0([arguments] { print_plans(*arguments); }); });
    add_suggest(program, action);
}

}  // namespace nearstep::app

// The program's commands and their options, and the choice of one. Used by main.cpp.
#include "app/commands.hpp"

#include "app/parse_faults.hpp"
#include "app/placement.hpp"
#include "base/dtype.hpp"
#include "base/error.hpp"
#include "base/output_file.hpp"
#include "base/stop_request.hpp"
#include "base/version.hpp"
#include "base/wording.hpp"
#include "checkpoint/export.hpp"
#include "engine/restart/job_record.hpp"
#include "model/geometry.hpp"
#include "model/hugging_face.hpp"
#include "report/summary.hpp"
#include "train/loop.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>

namespace nearstep::app {

void add_run_arguments(CLI::App& command, RunArguments& arguments, ConfigFile config) {
    command.add_option("config", arguments.config, "TOML file that says what to train")
        ->required(config == ConfigFile::required)
        ->check([](const std::string& path) {
            return std::string(path.empty() ? "the name is empty; give a TOML file" : "");
        });
    command.add_option("--site", arguments.site,
                       "site.toml, or the folder that holds it: where to run");
    // One value per --set, so that a value may begin with a bracket or a dash.
    command
        .add_option("--set", arguments.overrides,
                    "KEY=VALUE: overrides a key of the config; may be repeated")
        ->allow_extra_args(false)
        ->take_all();
    command.footer("Keys of a config (key, type, unit, default, meaning):\n" +
                   config::describe_keys(config::KeyTable::config) + "\nKeys of a site alone:\n" +
                   config::describe_keys(config::KeyTable::site));
}

namespace {

// `label`: a mode, then settings for this column only, separated by colons.
train::Column parse_column(config::Sources sources, const std::string& label) {
    std::istringstream parts(label);
    std::string part;
    std::getline(parts, part, ':');
    const auto mode = parse_word<config::Mode>("mode", part);
    sources.overrides.push_back(std::string("mode=") + config::name_of(mode));
    // Resets the config's codec settings that a mode without compression would refuse.
    if (mode != config::Mode::su_o_c) {
        sources.overrides.insert(sources.overrides.end(),
                                 {"compress.codec=dense", "compress.error_feedback=false",
                                  "compress.warmup_steps=0", "compress.rounding=nearest"});
    }
    if (mode == config::Mode::base) {
        sources.overrides.emplace_back("gather.codec=dense");
    }
    while (std::getline(parts, part, ':')) {
        sources.overrides.push_back(part);
    }
    return {.label = label, .run = config::parse(sources)};
}

mpi::Communicator world_of(const config::RunSettings& run) {
    return mpi::Communicator::world(std::chrono::seconds(run.exchange.timeout_s));
}

// The flags of `nearstep train` that say what to begin with.
struct BeginningFlags {
    bool resume = false;
    bool resume_if_any = false;
    bool fresh = false;
    std::string from;
};

engine::StartRequest request_of(const BeginningFlags& flags) {
    using Kind = engine::StartRequest::Kind;
    const bool is_fresh_job = flags.fresh && flags.resume_if_any && engine::is_restarted_job();
    if (flags.fresh && (flags.resume || flags.resume_if_any) && !is_fresh_job) {
        throw ConfigError(text("--fresh starts anew and ",
                               flags.resume_if_any ? "--resume-if-any" : "--resume",
                               " goes on from an earlier run: leave one of them out."));
    }
    const Kind kind = is_fresh_job          ? Kind::resume_if_any
                      : flags.fresh         ? Kind::fresh
                      : flags.resume_if_any ? Kind::resume_if_any
                      : !flags.from.empty() ? Kind::from
                      : flags.resume        ? Kind::resume
                                            : Kind::none;
    return {.kind = kind, .path = flags.from, .is_fresh_job = is_fresh_job};
}

struct TrainArguments {
    RunArguments run;
    BeginningFlags flags;
    train::RunOptions options;
};

void check_results(const TrainArguments& arguments, const config::Sources& sources,
                   const config::RunSettings& run) {
    std::vector<NamedPath> inputs = inputs_of(sources, run);
    inputs.push_back({"--from", arguments.flags.from});
    const train::RunOptions& results = arguments.options;
    std::vector<NamedPath> outputs = {{"--json", results.json}, {"--trace", results.trace}};
    for (const std::string& path : results.metrics) {
        outputs.push_back({"--metrics", path});
    }
    check_apart(outputs, inputs);
}

// The options that all ranks must have alike. Rank 0 alone uses the names of results.
mpi::NamedValues values_of(const TrainArguments& arguments) {
    const train::RunOptions& options = arguments.options;
    return {{"what to begin with", options.request.in_words()},
            {"--sample", text(options.sample_tokens)},
            {"--prompt", options.prompt},
            {"--trace", options.trace.empty() ? "not given" : "given"}};
}

mpi::NamedValues values_of(const std::vector<std::string>& modes,
                           const train::CompareOptions& options) {
    return {{"--modes", joined(modes)},
            {"--devices", joined(options.devices)},
            {"--steps", text(options.steps)}};
}

void add_train(CLI::App& program, Action& action, int& exit_code) {
    auto arguments = std::make_shared<TrainArguments>();
    CLI::App& command = *program.add_subcommand("train",
                                                "Train a model. Example:\n  mpirun -np 2 nearstep "
                                                "train configs/tiny.toml --set data.train=FILE");
    add_run_arguments(command, arguments->run);
    train::RunOptions& options = arguments->options;
    BeginningFlags& flags = arguments->flags;
    command.add_flag("--resume", flags.resume,
                     "go on from the state in csd.path, or from the newest checkpoint in "
                     "checkpoint.path");
    command.add_flag("--resume-if-any", flags.resume_if_any,
                     "as --resume, but start anew where there is nothing to resume from");
    command.add_option("--from", flags.from, "go on from this checkpoint's index file");
    command.add_flag("--fresh", flags.fresh, "start anew although an unfinished run is there");
    command.add_option("--json", options.json, "write the run's summary to this file");
    command
        .add_option("--metrics", options.metrics,
                    "write a JSON line per step to this file, or, if its name ends in .prom, the "
                    "last step's numbers for Prometheus; may be given once for each")
        ->allow_extra_args(false);
    command.add_option(
        "--trace", options.trace,
        "write a timeline of the steps to this file, for a browser's chrome://tracing "
        "or ui.perfetto.dev");
    command.add_flag("--traffic", options.shows_traffic,
                     "print the libraries and paths that the run uses when it starts, and tables "
                     "of the bytes on each link when it ends");
    // For launch/slurm_job, and for tests (base/fault_point.hpp). The help does not show them.
    command.add_option("--accounts", options.accounts)->group("");
    command.add_option("--fault", options.fault_plan)->envname("NEARSTEP_FAULT")->group("");
    command
        .add_option("--granted-devices", options.granted_devices,
                    "positions in csd.path that a batch system gave this host, as in 0-1,3")
        ->envname("NEARSTEP_CSDS");
    command
        .add_option("--notice", options.notice_s,
                    "seconds that a request to stop (SIGUSR1, SIGTERM) comes before the end")
        ->envname("NEARSTEP_NOTICE")
        ->check(CLI::Range(0, kMostCount));
    command
        .add_option("--sample", options.sample_tokens, "print this many sampled tokens at the end")
        ->check(CLI::Range(0, 1'000'000'000));
    command.add_option("--prompt", options.prompt, "what the sampled text goes on from");
    command.callback([arguments, &action, &exit_code] {
        arguments->options.request = request_of(arguments->flags);
        action = [arguments, &exit_code](const mpi::Communicator& starter) {
            const config::Sources sources =
                read_sources(starter, arguments->run, values_of(*arguments));
            const PlannedRun planned = place_by_plan(starter, sources);
            starter.on_rank_0([&] { check_results(*arguments, sources, planned.run); });
            arguments->options.calibration = planned.calibration;
            if (starter.rank() == 0 && !planned.line.empty()) {
                std::cout << planned.line << std::endl;
            }
            const bool is_finished =
                train::train(world_of(planned.run), planned.run, arguments->options);
            exit_code = is_finished ? 0 : kStoppedExitCode;
        };
    });
}

void add_compare(CLI::App& program, Action& action) {
    struct CompareArguments {
        RunArguments run;
        train::CompareOptions options;
        std::vector<std::string> modes = {"base", "su", "su+o", "su+o+c"};
    };
    auto arguments = std::make_shared<CompareArguments>();
    CLI::App& command = *program.add_subcommand(
        "compare",
        "Run the same first steps in several modes side by side. Example:\n  nearstep compare "
        "configs/links.toml --site cluster/smartssd-node-scaled --set data.train=FILE --modes "
        "base,su+o,su+o+c:csd.state=compact --devices 1,4,10");
    add_run_arguments(command, arguments->run);
    train::CompareOptions& options = arguments->options;
    command
        .add_option(
            "--modes", arguments->modes,
            "columns, with commas between: a mode, and behind colons KEY=VALUE for it alone")
        ->delimiter(',');
    command
        .add_option("--devices", options.devices,
                    "devices per rank, with commas between; default: as the config says")
        ->delimiter(',')
        ->check(CLI::Range(1, kMostCount));
    command.add_option("--steps", options.steps, "steps of each run; the first is not timed")
        ->capture_default_str();
    command.add_flag("--traffic", options.shows_traffic,
                     "print tables of the bytes on each link, beside the paper's");
    command.add_option("--json", options.json, "write an array of summaries to this file");
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& starter) {
            const config::Sources sources = read_sources(
                starter, arguments->run, values_of(arguments->modes, arguments->options));
            std::vector<train::Column>& columns = arguments->options.columns;
            for (const std::string& mode : arguments->modes) {
                columns.push_back(parse_column(sources, mode));
            }
            starter.on_rank_0([&] {
                check_apart({{"--json", arguments->options.json}},
                            inputs_of(sources, columns.front().run));
            });
            train::compare(world_of(columns.front().run), arguments->options);
        };
    });
}

std::map<std::string, checkpoint::TensorNote> notes_of(const config::ModelSettings& model) {
    std::map<std::string, checkpoint::TensorNote> notes;
    for (const model::MatrixNote& note : model::describe_matrices(model)) {
        notes[note.name] = {.layout = note.dimensions,
                            .ties = note.is_output ? std::vector<std::string>{model::kOutputWeights}
                                                   : std::vector<std::string>{}};
    }
    return notes;
}

// The files that an export of a built-in model needs. The function returns none for another
// program's model, which has its own files.
checkpoint::ModelTexts model_texts(const checkpoint::Description& about, Dtype dtype) {
    const config::ModelSettings model = config::stored_model("the checkpoint", about.config);
    if (!about.model.starts_with(text(config::name_of(model.architecture), " "))) {
        return {};
    }
    return {.config = model::hugging_face_config(model, dtype),
            .generation_config = model::generation_config(model),
            .notes = notes_of(model)};
}

void add_export(CLI::App& program, Action& action) {
    struct ExportArguments {
        std::string checkpoint;
        std::string out;
        std::string dtype = "f32";
        std::string format = "hdf5";
        double shard_gb = 5;
        bool has_moments = false;
    };
    auto arguments = std::make_shared<ExportArguments>();
    CLI::App& command = *program.add_subcommand(
        "export",
        "Write a checkpoint's masters as one HDF5 file, a dataset per parameter, or as a folder of "
        "safetensors that Hugging Face's from_pretrained() reads. Examples:\n  nearstep export "
        "runs/state/checkpoints/step-00000040.h5 model.h5 --dtype f16\n  nearstep export "
        "runs/state/checkpoints/step-00000040.h5 model --format safetensors --dtype bf16");
    command.add_option("checkpoint", arguments->checkpoint, "index file of the checkpoint")
        ->required();
    command.add_option("out", arguments->out, "HDF5 file to write, or folder to make")->required();
    command.add_option("--dtype", arguments->dtype, "f32, f16, or bf16 of safetensors")
        ->check(CLI::IsMember({"f32", "f16", "bf16"}));
    command.add_option("--format", arguments->format, "hdf5 or safetensors")
        ->check(CLI::IsMember({"hdf5", "safetensors"}))
        ->capture_default_str();
    command.add_flag("--moments", arguments->has_moments,
                     "HDF5: also write the optimizer's moments, in f32");
    command.add_option("--shard-gb", arguments->shard_gb, "most of a file of safetensors")
        ->check(number_in(1e-6, 1e6))
        ->capture_default_str();
    command.callback([arguments, &action] {
        action = [arguments](const mpi::Communicator& world) {
            if (std::isnan(arguments->shard_gb)) {
                throw ConfigError("--shard-gb is no number: give a size in GB, as in 5.");
            }
            const Dtype dtype = arguments->dtype == "f16"    ? Dtype::fp16
                                : arguments->dtype == "bf16" ? Dtype::bf16
                                                             : Dtype::fp32;
            const auto texts = [&](const auto& about) { return model_texts(about, dtype); };
            if (arguments->format == "hdf5") {
                const auto moments = arguments->has_moments ? checkpoint::Moments::written
                                                            : checkpoint::Moments::left_out;
                world.on_rank_0([&] {
                    check_apart({{"The output", arguments->out}}, files_of_runs());
                });
                checkpoint::export_checkpoint(world, arguments->checkpoint, arguments->out,
                                              {.dtype = dtype, .moments = moments}, texts);
            } else if (arguments->has_moments) {
                throw ConfigError("--moments needs --format hdf5: safetensors hold a model alone.");
            } else {
                checkpoint::export_safetensors(world, arguments->checkpoint, arguments->out, dtype,
                                               static_cast<std::size_t>(arguments->shard_gb * 1e9),
                                               texts);
            }
            world.on_rank_0([&] { std::cout << "exported " << arguments->out << "\n"; });
        };
    });
}

void add_inspect(CLI::App& program, Action& action) {
    auto path = std::make_shared<std::string>();
    CLI::App& command =
        *program.add_subcommand("inspect",
                                "Print what a checkpoint or an export holds and verify its "
                                "checksums. Example:\n  nearstep inspect model.h5");
    command.add_option("file", *path, "index file of a checkpoint, or an export")->required();
    command.callback(
        [path, &action] { action = on_rank_0([path] { checkpoint::inspect(*path, std::cout); }); });
}

}  // namespace

std::string indented(const nlohmann::json& result) { return report::text_of(result); }

std::string lines_of(const nlohmann::json& rows) {
    std::string lines;
    for (const nlohmann::json& row : rows) {
        lines += report::text_of(row, -1);
    }
    return lines;
}

void write_result_of(const std::function<std::string()>& work, const std::string& path) {
    check_writable(path);
    write_whole_file(path, work());
}

void write_result_of(const mpi::Communicator& world, const std::function<std::string()>& work,
                     const std::string& path) {
    world.on_rank_0([&] { check_writable(path); });
    const std::string result = work();
    world.on_rank_0([&] { write_whole_file(path, result); });
}

Action on_rank_0(std::function<void()> work) {
    return [work = std::move(work)](const mpi::Communicator& world) { world.on_rank_0(work); };
}

namespace {

void add_commands(CLI::App& program, Action& action, int& exit_code) {
    program.require_subcommand(1);
    add_train(program, action, exit_code);
    add_compare(program, action);
    add_doctor(program, action);
    add_export(program, action);
    add_inspect(program, action);
    add_bench(program, action);
    add_launch(program, action);
    add_plan(program, action);
    add_report(program, action);
}

}  // namespace

int run_command(const mpi::Communicator& world, int argc, const char* const* argv) {
    CLI::App program(
        "Trains language models whose optimizer state lives in storage, with the optimizer step "
        "near it.",
        "nearstep");
    program.set_version_flag("--version", std::string(version()) + " commit " + commit());
    Action action;
    int exit_code = 0;
    add_commands(program, action, exit_code);
    try {
        program.parse(argc, argv);
    } catch (const CLI::Success& request) {  // --help, --version
        return world.rank() == 0 ? program.exit(request) : 0;
    } catch (const CLI::ParseError& error) {
        throw ConfigError(sentence_of(program, error));
    }
    refuse_empty_items(program, argc, argv);
    const bool trains = program.got_subcommand("train") || program.got_subcommand("compare");
    write_messages_for(trains ? Client::program : Client::tool);
    action(world);
    return exit_code;
}

}  // namespace nearstep::app

// The command suggest. Used by commands.cpp.
#include "app/commands.hpp"
#include "app/model_shape.hpp"
#include "base/error.hpp"
#include "base/formatted.hpp"
#include "base/machine.hpp"
#include "base/units.hpp"
#include "bench/csd_bench.hpp"
#include "engine/state/state_drives.hpp"
#include "memory/gpu.hpp"
#include "model/compute_device.hpp"
#include "plan/kept_state.hpp"
#include "plan/suggest.hpp"
#include "store/drive.hpp"
#include "store/storage_folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

namespace nearstep::app {

namespace {

// Figures that are given are not measured, so that they can make a machine by hand.
struct SuggestArguments {
    std::string model;
    std::string folder = "runs/state";
    int context = 0;
    int tokens = 65536;
    std::optional<double> gpu_tflops;
    std::optional<double> gpu_memory_gb;
    std::optional<double> gpu_memory_gb_s;
    std::optional<double> gpu_link_gb_s;
    std::optional<double> host_memory_gb;
    std::optional<double> host_memory_gb_s;
    std::optional<double> drive_gb_s;
    std::optional<double> drive_gb;
    std::optional<double> rated_tbw;
    std::string json;
};

constexpr double kSecondsPerDay = 86400;

struct Found {
    plan::Machine machine;
    std::string gpu;  // its name
    store::Drive drive;
};

// A GPU that the user describes, else that of this machine, else the CPU.
void set_gpu(const SuggestArguments& given, plan::Task& task, Found& found) {
    constexpr double kOperationsPerByte = 200;  // of GPUs for training, about
    constexpr double kLinkOfHand = 25;
    constexpr int kTimes = 5;  // other programs may share the cores
    plan::Machine& machine = found.machine;
    const auto of = [](const std::optional<double>& value, auto&& otherwise) {
        return value ? *value * plan::kGiga : otherwise();
    };
    if (given.gpu_tflops) {
        if (!given.gpu_memory_gb) {
            throw ConfigError("--gpu-tflops describes a GPU: give its --gpu-memory-gb, too.");
        }
        found.gpu = text("a GPU of ", three_digits(*given.gpu_tflops), " TFLOP/s");
        machine.gpu_operations = plan::kProductsOfPeak * *given.gpu_tflops * 1e12;
        machine.gpu_memory = *given.gpu_memory_gb * plan::kGiga;
        machine.gpu_memory_rate = of(given.gpu_memory_gb_s,
                                     [&] { return *given.gpu_tflops * 1e12 / kOperationsPerByte; });
        machine.gpu_link = of(given.gpu_link_gb_s, [] { return kLinkOfHand * plan::kGiga; });
        return;
    }
    const model::ComputeDevice device = model::choose_device(config::Processor::automatic, 0);
    machine.has_gpu = device.is_gpu() && memory::gpus() > 0;
    if (!machine.has_gpu) {
        task.model.dtype = model::compute_format(task.model);
        found.gpu = "no GPU, so that the CPU computes";
        for (int i = 0; i < kTimes; ++i) {
            machine.gpu_operations =
                std::max(machine.gpu_operations, model::measure_product_rate({}, task.model.dtype));
        }
        machine.gpu_memory = machine.host_memory;
        machine.gpu_memory_rate = machine.gpu_link = machine.host_memory_rate;
        return;
    }
    memory::use_gpu(*device.gpu);
    found.gpu = memory::name_of_gpu(*device.gpu);
    machine.gpu_memory = of(given.gpu_memory_gb,
                            [] { return static_cast<double>(memory::room_of_gpu().free_bytes); });
    machine.gpu_operations = model::measure_product_rate(device, Dtype::bf16);
    machine.gpu_memory_rate =
        of(given.gpu_memory_gb_s, [&] { return model::measure_memory_rate(device); });
    machine.gpu_link = of(given.gpu_link_gb_s, [&] { return model::measure_link_rate(device); });
}

void set_drive(const SuggestArguments& given, Found& found) {
    plan::Machine& machine = found.machine;
    const std::string present = store::nearest_present(given.folder);
    machine.folder = std::filesystem::absolute(given.folder).string();
    found.drive = store::drive_of(present);
    const store::DriveLife& life = found.drive.life;
    machine.drive_rating =
        given.rated_tbw
            ? *given.rated_tbw * 1e12
            : std::max(0.0, life.rated_bytes.value_or(0) - life.written_bytes.value_or(0));
    const bool is_memory = !given.drive_gb_s && store::lies_in_memory(present);
    machine.drive_free = given.drive_gb ? *given.drive_gb * plan::kGiga
                         : is_memory
                             ? 0
                             : static_cast<double>(store::free_bytes_of(present).value_or(0));
    machine.drive_rate = given.drive_gb_s ? *given.drive_gb_s * plan::kGiga
                         : is_memory      ? 0
                                          : bench::measure_drive(present);
}

Found find_machine(const SuggestArguments& given, plan::Task& task) {
    Found found;
    plan::Machine& machine = found.machine;
    machine.host_memory = given.host_memory_gb
                              ? *given.host_memory_gb * plan::kGiga
                              : static_cast<double>(machine_memory().available_bytes);
    machine.host_memory_rate = given.host_memory_gb_s ? *given.host_memory_gb_s * plan::kGiga
                                                      : model::measure_memory_rate({});
    set_gpu(given, task, found);
    set_drive(given, found);
    return found;
}

std::string describe_machine(const Found& found) {
    const plan::Machine& machine = found.machine;
    const auto rate = [](double bytes) { return human_bytes(bytes) + "/s"; };
    const std::string drive =
        machine.drive_rate > 0
            ? text(machine.folder, " on ", found.drive.name.empty() ? "a drive" : found.drive.name,
                   found.drive.has_root ? " (the root filesystem)" : "", ": ",
                   rate(machine.drive_rate), ", ", human_bytes(machine.drive_free), " free")
            : text(machine.folder, " lies in memory: name a drive's folder with --path");
    return text("machine: ", found.gpu, " (", three_digits(machine.gpu_operations / 1e12),
                " TFLOP/s of large products, ", human_bytes(machine.gpu_memory), " at ",
                rate(machine.gpu_memory_rate), "); host memory ", human_bytes(machine.host_memory),
                " at ", rate(machine.host_memory_rate), "; ", drive);
}

std::string describe_wear(const Found& found, const plan::Forecast& one) {
    if (one.way.keeping == csd::Keeping::once) {
        return "no wear; state in memory survives a killed process, but no reboot";
    }
    const double per_day = one.written_bytes / one.step_s * kSecondsPerDay;
    const std::string logs = one.way.keeping == csd::Keeping::logged
                                 ? plan::describe(one.logged, one.replay_s) + "; "
                                 : std::string();
    const std::string words = text(logs, "wear: a step writes ", human_bytes(one.written_bytes),
                                   ", ", human_bytes(per_day), " a day");
    return found.machine.drive_rating > 0
               ? text(words, "; the ", human_bytes(found.machine.drive_rating),
                      " that the drive still bears last ",
                      three_digits(found.machine.drive_rating / per_day), " days")
               : words + "; what the drive bears is not known (--rated-tbw)";
}

// "LINE\nLINE" with the arguments that make this way.
std::string python_of(const SuggestArguments& given, const Found& found, const plan::Task& task,
                      const plan::Forecast& one) {
    const plan::Way& way = one.way;
    std::error_code ignored;
    const bool is_there = std::filesystem::exists(given.model, ignored);
    std::filesystem::path folder = is_there ? std::filesystem::path(given.model) : "MODEL";
    if (is_there && !std::filesystem::is_directory(folder, ignored)) {
        folder = folder.parent_path().empty() ? "." : folder.parent_path();
    }
    const std::string from = nlohmann::json(folder.string())
                                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    const std::string dtype =
        task.model.dtype == Dtype::fp32 ? "dtype=torch.float32" : "dtype=torch.bfloat16";
    const bool is_streamed = way.home != plan::Home::gpu;
    const int passes = std::max(1, (task.sequences + way.micro_batch - 1) / way.micro_batch);
    const bool is_lora = way.trained == plan::Trained::adapters;
    std::string out = text("import nearstep, ", is_lora ? "peft, " : "",
                           "torch\nfrom transformers import AutoConfig, AutoModelForCausalLM\n\n");
    out += is_streamed
               ? text(
                     "with nearstep.empty(\"cuda\"):\n    model = AutoModelForCausalLM.from_config("
                     "AutoConfig.from_pretrained(",
                     from, "), ", dtype, ")\n")
               : text("model = AutoModelForCausalLM.from_pretrained(", from, ", ", dtype, ")",
                      found.machine.has_gpu ? ".cuda()" : "", "\n");
    if (is_lora) {
        out +=
            "model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, "
            "target_modules=\"all-linear\"))\n";
    }
    const std::string path =
        way.keeping == csd::Keeping::once ? std::string("/dev/shm/nearstep") : found.machine.folder;
    const std::string quoted =
        nlohmann::json(path).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out += text(
        "opt = nearstep.AdamW(nearstep.groups(model), lr=1e-5, clip_norm=1.0,\n"
        "                     path=",
        quoted, way.keeping == csd::Keeping::logged ? ", log=" + quoted : "");
    if (way.state != arith::StateFormat::fp32) {
        out += text(", state=\"", nearstep::name_of(way.state), "\", codec=\"",
                    nearstep::name_of(way.codec), "\"");
    }
    out += passes > 1 ? text(", accumulation=", passes) : "";
    out += way.log_gb > 0 ? text(", config={\"csd.log_gb\": ", way.log_gb, "}") : "";
    if (is_streamed) {
        out += text(",\n                     weights=", from,
                    ", stream=nearstep.Stream(gpu_memory_gb=",
                    std::floor(found.machine.gpu_memory / plan::kGiga));
        out += way.home == plan::Home::storage
                   ? text(", host_memory_gb=", std::floor(way.host_memory / plan::kGiga), ")")
                   : ")";
    }
    return text(out, ")\nstart = opt.resume()  # rows of a batch: ", way.micro_batch);
}

std::string indent(const std::string& lines) {
    std::string out = "    ";
    for (const char letter : lines) {
        out += letter;
        out += letter == '\n' ? "    " : "";
    }
    return out;
}

[[noreturn]] void refuse_all(const plan::Machine& machine, const plan::Task& task) {
    const plan::Forecast least =
        plan::forecast(machine, task,
                       {.home = machine.has_gpu ? plan::Home::storage : plan::Home::gpu,
                        .state = arith::StateFormat::compact,
                        .codec = plan::Codec::q4,
                        .host_memory = machine.has_gpu ? machine.host_memory / 2 : 0});
    throw ConfigError(text("No way to train this model fits the machine: the smallest takes ",
                           human_bytes(least.gpu_bytes),
                           machine.has_gpu ? " of GPU memory, " : " of memory to compute, ",
                           human_bytes(least.host_bytes), " of host memory and ",
                           human_bytes(least.drive_bytes), " in ", machine.folder,
                           ": name a folder with more room with --path, take a shorter --context, "
                           "or a smaller model."));
}

nlohmann::json to_json(const plan::Forecast& one, const std::string& python) {
    return {
        {"way", plan::name_of(one.way)},
        {"origin", "modelled"},
        {"tokens_per_s", one.tokens_per_s},
        {"step_s", one.step_s},
        {"gpu_bytes", one.gpu_bytes},
        {"host_bytes", one.host_bytes},
        {"drive_bytes", one.drive_bytes},
        {"written_bytes_per_step", one.written_bytes},
        {"micro_batch", one.way.micro_batch},
        {"python", python},
        {"logs", one.way.keeping == csd::Keeping::logged ? plan::to_json(one.logged, one.replay_s)
                                                         : nlohmann::json()}};
}

nlohmann::json make_suggestions(const SuggestArguments& given) {
    plan::Task task = task_of(given.model, given.context);
    task.sequences = std::max(1, given.tokens / task.model.context);
    const Found found = find_machine(given, task);
    const std::vector<plan::Forecast> ways = plan::suggest(found.machine, task);
    std::cout << describe_machine(found) << "\n"
              << "model: " << three_digits(static_cast<double>(task.size.parameters) / 1e9)
              << "e9 parameters in " << task.model.layers << " layers of width " << task.model.width
              << "; a step of " << task.sequences << " rows of " << task.model.context
              << " tokens. What follows is modelled by nearstep plan's formulas.\n";
    if (ways.empty()) {
        refuse_all(found.machine, task);
    }
    nlohmann::json out = nlohmann::json::array();
    for (const plan::Forecast& one : ways) {
        const std::string python = python_of(given, found, task, one);
        const bool is_much = found.drive.has_root && one.drive_bytes >= engine::kMuchOfRoot;
        std::cout << "\n"
                  << out.size() + 1 << ". " << plan::name_of(one.way) << ": "
                  << std::llround(one.tokens_per_s) << " tokens/s, " << three_digits(one.step_s)
                  << " s a step\n   memory: "
                  << (found.machine.has_gpu
                          ? text(human_bytes(one.gpu_bytes), " of the GPU, ",
                                 human_bytes(one.host_bytes), " of the host")
                          : text(human_bytes(one.gpu_bytes + one.host_bytes), " of the host"))
                  << (one.drive_bytes > 0
                          ? text(", ", human_bytes(one.drive_bytes), " of the drive")
                          : "")
                  << (is_much ? ", which is the root filesystem: the start will ask" : "")
                  << "\n   " << describe_wear(found, one) << "\n"
                  << indent(python) << "\n";
        out.push_back(to_json(one, python));
    }
    return out;
}

void add_machine(CLI::App& command, SuggestArguments& arguments) {
    const CLI::Validator above = number_in(1e-9, 1e9);
    const auto figure = [&](const char* name, std::optional<double>& value, const char* meaning) {
        command.add_option(name, value, meaning)->check(above);
    };
    figure("--gpu-tflops", arguments.gpu_tflops,
           "16-bit products of the GPU's data sheet; with --gpu-memory-gb, for a GPU that is not "
           "here");
    figure("--gpu-memory-gb", arguments.gpu_memory_gb,
           "that the run may take; default: what is free");
    figure("--gpu-memory-gb-s", arguments.gpu_memory_gb_s, "default: measured");
    figure("--gpu-link-gb-s", arguments.gpu_link_gb_s,
           "from the host to the GPU; default: measured");
    figure("--host-memory-gb", arguments.host_memory_gb, "default: what is available");
    figure("--host-memory-gb-s", arguments.host_memory_gb_s, "default: measured");
    figure("--drive-gb-s", arguments.drive_gb_s,
           "reads and writes of the drive together; default: measured in about a second");
    figure("--drive-gb", arguments.drive_gb, "free on the drive; default: what is");
    figure("--rated-tbw", arguments.rated_tbw,
           "TB that may still be written to the drive; default: what it tells");
}

}  // namespace

void add_suggest(CLI::App& program, Action& action) {
    auto arguments = std::make_shared<SuggestArguments>();
    CLI::App& command = *program.add_subcommand(
        "suggest",
        "Look at this machine and print the three best ways to train a model with the Python "
        "package, each with speed, memory, wear and the lines to paste. Examples:\n  nearstep "
        "suggest path/to/Llama-2-7b --path /nvme0/run\n  nearstep suggest 7e9 --gpu-tflops 165 "
        "--gpu-memory-gb 24");
    command
        .add_option("model", arguments->model,
                    "folder of Hugging Face, its config.json, or a count of parameters as in 7e9")
        ->required();
    command.add_option("--path", arguments->folder, "folder for the state")
        ->check(not_empty())
        ->capture_default_str();
    command
        .add_option("--context", arguments->context,
                    "tokens of a row; default: the model's, 2,048 at most")
        ->check(CLI::Range(1, 1 << 24));
    command.add_option("--tokens", arguments->tokens, "of a step")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    add_machine(command, *arguments);
    command.add_option("--json", arguments->json, "write an array with an object per way");
    command.callback([arguments, &action] {
        action = on_rank_0([arguments] {
            check_apart({{"--json", arguments->json}}, {{"the model", arguments->model}});
            write_result_of([&] { return indented(make_suggestions(*arguments)); },
                            arguments->json);
        });
    });
}

}  // namespace nearstep::app

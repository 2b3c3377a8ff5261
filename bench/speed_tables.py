"""Tables of training speed: GPT-2 XL, large models, sharded ones, sizes, less host memory, and logs. Used by
bench/tables."""

import statistics

import markdown_table
from table_lines import lines_of, optional, origin, read, seconds, steady


# Rows of GPT-2 XL, with the state on a disk or in the host's memory.
ROWS = {
    "memory-compiled": "PyTorch's fused AdamW in memory, bf16 moments",
    "memory-aligned": "PyTorch's fused AdamW in memory, bf16 moments, a vocabulary of 50,304, a multiple of 64",
    "deepspeed-nvme": "DeepSpeed, state on the disk, fp32",
    "deepspeed-nvme-bf16": "DeepSpeed, state on the disk, bf16",
    "deepspeed-cpu": "DeepSpeed, ZeRO stage 2, optimizer on the CPU, fp32",
    "deepspeed-superoffload": "DeepSpeed SuperOffload, optimizer on the CPU, fp32",
    "nearstep-fp32": "nearstep, fp32 state, dense gradients",
    "nearstep-compact-4-slots": "nearstep, compact state, dense gradients, no state kept",
    "nearstep-compact": "nearstep, compact state, dense gradients",
    "nearstep-q4": "nearstep, compact state, q4 gradients",
    "nearstep-q4-aligned": "nearstep, compact state, q4 gradients, a vocabulary of 50,304",
    "nearstep-fp32-quarter": "nearstep, fp32 state, q4 gradients, parameters in storage",
}
# Rows of large models with state in /dev/shm, each with the row that it is beside, and the rows of a micro-batch where
# the line does not say it.
LARGE = {
    "memory-7b": ("PyTorch's fused AdamW in memory, bf16 moments", "memory-7b", 2),
    "nearstep-7b": ("nearstep, compact state, q4 gradients", "memory-7b", 2),
    "nearstep-7b-fp32": ("nearstep, fp32 state, dense gradients", "memory-7b", 2),
    "nearstep-7b-16gb": (
        "nearstep, compact state, q4 gradients, layers streamed through at most 16 GB of the GPU",
        "memory-7b",
        8,
    ),
    "memory-7b-unclipped": ("in memory, no step clipped", "memory-7b-unclipped", 2),
    "nearstep-7b-unclipped": ("nearstep, compact state, q4 gradients, no step clipped", "memory-7b-unclipped", 2),
    "memory-7b-lora": ("LoRA in memory", "memory-7b-lora", 4),
    "nearstep-7b-lora-16gb": ("LoRA beside a frozen, streamed base, at most 16 GB of the GPU", "memory-7b-lora", 8),
    "own-7b-65k": ("nearstep's own GPT, 6.66e9 parameters", None, 4),
    "nearstep-13b": ("nearstep, 13e9 parameters, compact state, q4 gradients", None, 2),
    "nearstep-13b-80gb": ("nearstep, 13e9 parameters, compact state, q4 gradients, at most 78 GB of the GPU", None, 2),
    "nearstep-13b-stream-80gb": ("the same, layers streamed", None, 16),
}


def of_gpt2_xl(name, beside=None, in_memory="memory-compiled"):
    """Rows beside those of training in memory and, if one is named, ``beside``. A row without a line is left out."""
    found = lines_of(name)
    lines = [found[row] for row in ROWS if row in found]
    rates = {line["row"]: line["tokens_per_s"] for line in lines}
    common = min(len(line["losses"]) for line in lines)
    text = markdown_table.table(
        [
            "row",
            "steps",
            "seconds of a step: median (least to most)",
            "tokens/s",
            "of in memory",
            *([f"of {ROWS[beside]}"] if beside else []),
            "disk, GB/s",
            "GPU memory, GB",
            "host memory, GB",
            f"loss of step {common}",
        ],
        [
            [
                ROWS[line["row"]],
                str(len(steady(line))),
                seconds(line),
                f"{line['tokens_per_s']:,.0f}",
                f"{line['tokens_per_s'] / rates[in_memory]:.2f}",
                *([f"{line['tokens_per_s'] / rates[beside]:.2f}"] if beside else []),
                optional(line["drive_gb_per_s"], ".1f"),
                f"{line['gpu_gb']:.1f}",
                f"{line['host_gb'] or line['resident_gb']:.0f}",
                f"{line['losses'][common - 1]:.3f}",
            ]
            for line in lines
        ],
    )
    first = lines[0]
    return (
        text
        + f"\n{origin(first)}, PyTorch {first['torch']}, micro-batches of {first['settings']['micro_batch']} rows.\n"
    )


def quarter():
    """Rows that have host memory for a quarter of their state."""
    lines = read("quarter")
    return (
        markdown_table.table(
            [
                "row",
                "machine",
                "host memory",
                "steps",
                "seconds of a step: median (least to most)",
                "tokens/s",
                "disk, GB/s",
                "read and written a step, GB",
                "GPU memory, GB",
            ],
            [
                [
                    ROWS[line["row"]],
                    line["machine"],
                    line["host_limit"],
                    str(len(steady(line))),
                    seconds(line),
                    f"{line['tokens_per_s']:,.0f}",
                    f"{line['drive_gb_per_s']:.2f}",
                    f"{line['drive_gb_per_s'] * statistics.mean(steady(line)):.1f}",
                    f"{line['gpu_gb']:.1f}",
                ]
                for line in lines
            ],
        )
        + f"\n{origin(*lines)}, PyTorch {lines[0]['torch']}.\n"
    )


# Columns that several tables have, by their titles.
STEPS = {"steps": lambda line: str(len(steady(line)))}
SPEED = {
    "seconds of a step: median (least to most)": seconds,
    "tokens/s": lambda line: f"{line['tokens_per_s']:,.0f}",
}
MICRO_BATCH = {"rows of a micro-batch": lambda line: str(line["settings"]["micro_batch"])}
FIRST_STEP = {"first step, s": lambda line: f"{line['first_step_s']:.0f}"}
# Memory of the whole machine, or of the process where other work ran beside it.
HOST_MEMORY = {"host memory, GB": lambda line: f"{line['host_gb'] or line['resident_gb']:.0f}"}


def gpu_memory(line):
    return f"{line['gpu_gb']:.1f} ({optional(line.get('gpu_reserved_gb'), '.1f')})"


def share_of(rate):
    """The speed of a line over this one."""
    return lambda line: f"{line['tokens_per_s'] / rate:.2f}"


def table_of(lines, columns):
    """A table with a row for each line. ``columns``: functions of the line by their titles."""
    rows = [[of(line) for of in columns.values()] for line in lines]
    return f"{markdown_table.table(list(columns), rows)}\n{origin(lines[0])}, PyTorch {lines[0]['torch']}.\n"


def large(name):
    """6.7e9 parameters and more, the same batches with state in memory and in /dev/shm."""
    found = lines_of(name)
    lines = [found[row] for row in LARGE if row in found]

    def of(line):
        beside = LARGE[line["row"]][1]
        return f"{line['tokens_per_s'] / found[beside]['tokens_per_s']:.2f}" if beside in found else "-"

    def rows(line):
        return str(line["settings"]["micro_batch"] if "shape" in line["settings"] else LARGE[line["row"]][2])

    return table_of(
        lines,
        {
            "row": lambda line: LARGE[line["row"]][0],
            "rows of a micro-batch": rows,
            **STEPS,
            **SPEED,
            "of in memory": of,
            "MFU": lambda line: f"{line['mfu']:.2f}",
            "GPU memory, GB: allocated (reserved)": gpu_memory,
            **FIRST_STEP,
        },
    )


# Rows of one way beside nearstep under FSDP2, the same batches, state in /dev/shm or in the process.
SHARDED = {
    "memory-7b": "PyTorch's fused AdamW in memory, bf16 moments",
    "nearstep-7b": "nearstep, compact state, q4 gradients, 60 GB of the GPU",
    "fsdp2-nearstep-7b": "FSDP2 with nearstep, compact state, q4 gradients",
    "fsdp2-offload-7b": "FSDP2, `CPUOffloadPolicy`, PyTorch's fused AdamW on the CPU in bf16",
    "deepspeed-cpu-bf16-7b": "DeepSpeed ZeRO-2, optimizer on the CPU, bf16 state",
}


def sharded(name):
    """6.7e9 parameters under FSDP2, beside other ways."""
    found = lines_of(name)
    lines = [found[row] for row in SHARDED if row in found]
    return table_of(
        lines,
        {
            "row": lambda line: SHARDED[line["row"]],
            **STEPS,
            **SPEED,
            "of nearstep alone": share_of(found["nearstep-7b"]["tokens_per_s"]),
            "GPU memory, GB: allocated (reserved)": gpu_memory,
            **HOST_MEMORY,
            f"held-out loss after {len(lines[0]['seconds'])} steps": lambda line: f"{line['heldout_loss']:.2f}",
        },
    )


# Rows on several GPUs of one host.
SEVERAL = {
    "fsdp2-memory-7b": "FSDP2, PyTorch's fused AdamW in memory, bf16 moments",
    "ddp-memory-7b": "DDP, PyTorch's fused AdamW in memory, bf16 moments",
    "fsdp2-nearstep-7b": "FSDP2 with nearstep",
    "ddp-nearstep-7b": "DDP with nearstep",
    "nearstep-7b": "nearstep-run, at most 60 GB of each GPU",
    "nearstep-7b-16gb": "nearstep-run, layers streamed through at most 16 GB of each GPU",
    "nearstep-7b-16gb-peers": "the same, each layer read once from host memory, and from the other GPU",
    "fsdp2-offload-7b": "FSDP2, `CPUOffloadPolicy`, PyTorch's fused AdamW on the CPU in bf16",
}


def several(name):
    """6.7e9 parameters on several GPUs of one host."""
    found = lines_of(name)
    lines = [found[row] for row in SEVERAL if row in found]
    most = max(line["tokens_per_s"] for line in lines if "-memory-" in line["row"])
    return table_of(
        lines,
        {
            "row": lambda line: SEVERAL[line["row"]],
            "GPUs": lambda line: str(line["settings"]["gpus"]),
            **MICRO_BATCH,
            **SPEED,
            "of in memory": share_of(most),
            "memory of a GPU, GB: allocated (reserved)": gpu_memory,
            **HOST_MEMORY,
            **FIRST_STEP,
        },
    )


# One commit's rows by size, all with state in /dev/shm.
SIZES = {
    "memory-7b": "6.7e9, PyTorch's fused AdamW in memory, bf16 moments",
    "nearstep-7b-24gb": "6.7e9, layers streamed through at most 24 GB",
    "nearstep-7b-16gb": "6.7e9, layers streamed through at most 16 GB",
    "nearstep-13b-80gb": "13e9, at most 78 GB",
}
# Rows of one commit with less host memory, beside that of the same limit above.
HOST = {
    "nearstep-7b-16gb-bf16-sums": "6.7e9, sums of gradients in bf16",
    "nearstep-7b-16gb-host": "6.7e9, the same, and no parameters beside the state",
}


# Rows of one H200 and 16 cores.
ON_ONE_H200 = {
    "memory-7b": "6.7e9, PyTorch's fused AdamW in memory, bf16 moments",
    "nearstep-7b": "6.7e9, at most 60 GB",
    "nearstep-7b-in-gpu": "6.7e9, all state in the GPU's memory, not durable, sums in bf16",
    "nearstep-7b-16gb-least-host": "6.7e9, streamed through at most 16 GB, at most 48 GB of the host, sums in bf16",
    "fsdp2-offload-7b": "6.7e9, FSDP2, `CPUOffloadPolicy`, PyTorch's fused AdamW on the CPU in bf16",
    "torchao-7b-unclipped": "6.7e9, torchao's `CPUOffloadOptimizer`, PyTorch's AdamW on the CPU in bf16, not clipped",
    "nearstep-13b-80gb-bf16-sums": "13e9, at most 78 GB, sums of gradients in bf16",
    "nearstep-13b-24gb-host": "13e9, streamed through at most 24 GB, sums in bf16, no parameters beside the state",
    "memory-30b-lora": "30.5e9, LoRA in memory, bf16",
    "nearstep-30b-lora-24gb": "30.5e9, LoRA beside streamed layers, at most 24 GB",
}


def sizes():
    """Each size and limit of the GPU's memory."""
    return size_rows(lines_of("sizes"), SIZES)


def less_host(name):
    """Rows that take less of the host's memory."""
    found = lines_of(name)
    return size_rows(found, {row: HOST[row] for row in found})


def on_one_h200(name, in_memory="memory-7b"):
    """Rows of one H200. ``in_memory``: the row beside which those of its size have a share."""
    found = lines_of(name)
    size, share = in_memory.split("-")[1], share_of(found[in_memory]["tokens_per_s"])
    names = {row: words for row, words in ON_ONE_H200.items() if row in found}
    return size_rows(found, names, lambda line: share(line) if size in line["row"] else "-")


def size_rows(found, names, of_in_memory=None):
    """``of_in_memory(line)``: by default beside the row in memory of `sizes`."""
    of_sizes = share_of(lines_of("sizes")["memory-7b"]["tokens_per_s"])
    return table_of(
        [found[row] for row in names],
        {
            "parameters, way": lambda line: names[line["row"]],
            **MICRO_BATCH,
            **STEPS,
            **SPEED,
            "of in memory": of_in_memory or (lambda line: "-" if "13b" in line["row"] else of_sizes(line)),
            "GPU memory, GB: allocated (reserved; outside of PyTorch)": lambda line: (
                "{gpu_gb:.1f} ({gpu_reserved_gb:.1f}; {gpu_outside_gb:.1f})".format(**line)
            ),
            **HOST_MEMORY,
            **FIRST_STEP,
        },
    )


LOGS = (
    ("memory-compiled", "disk", "1.56e9, PyTorch's fused AdamW in memory"),
    ("nearstep-q4", "disk", "1.56e9, state on the disk, two places"),
    ("nearstep-q4", "log", "1.56e9, state in memory, logs of 16 steps on the disk"),
    ("nearstep-q4", "memory", "1.56e9, state in memory, which a power cut empties"),
    ("nearstep-7b", "log", "6.7e9, state in memory, logs of 5 steps on the disk"),
    ("nearstep-7b", "memory", "6.7e9, state in memory, which a power cut empties"),
)


def logs_lines():
    """Returns the lines by row and by the place of the state that survives a crash."""
    found = {}
    for line in read("logs"):
        is_in_memory = line["folder"].startswith("/dev/shm")
        has_log = "log" in line["settings"]["options"]
        found[line["row"], "memory" if is_in_memory else "log" if has_log else "disk"] = line
    return found


def logs():
    """Logs on a drive, beside state on it and state in memory."""
    found = logs_lines()
    return (
        markdown_table.table(
            [
                "parameters, way",
                "steps",
                "seconds of a step: median (least to most)",
                "tokens/s",
                "written, bytes a parameter and step",
                "disk, GB/s",
                "host memory, GB",
                "first step, s",
            ],
            [
                [
                    words,
                    str(len(steady(found[row, place]))),
                    seconds(found[row, place]),
                    f"{found[row, place]['tokens_per_s']:,.0f}",
                    f"{logs_bytes(found[row, place]):.2f}" if row != "memory-compiled" and place != "memory" else "-",
                    f"{found[row, place]['drive_gb_per_s']:.2f}",
                    f"{found[row, place]['host_gb']:.0f}",
                    f"{found[row, place]['first_step_s']:.0f}",
                ]
                for row, place, words in LOGS
            ],
        )
        + f"\n{origin(found['memory-compiled', 'disk'])}, PyTorch {found['memory-compiled', 'disk']['torch']}.\n"
    )


def logs_bytes(line):
    """Returns the bytes that a step writes per parameter, from the drive's rate in the steady steps."""
    parameters = 6738415616 if "7b" in line["row"] else 1557611200
    return line["drive_gb_per_s"] * 1e9 * statistics.fmean(steady(line)) / parameters


def logs_over(one, other):
    found = logs_lines()
    return f"{found[one]['tokens_per_s'] / found[other]['tokens_per_s']:.2f}"

"""The rows of bench/end_to_end: shapes of models, and the options of each row. Used by it and by other programs that
train the same models.
"""

GPT2 = {"context": 1024, "vocabulary": 50257}
MODELS = {
    "gpt2-xl": GPT2 | {"layers": 48, "heads": 25, "width": 1600},
    "gpt2-large": GPT2 | {"layers": 36, "heads": 20, "width": 1280},
    "gpt2-medium": GPT2 | {"layers": 24, "heads": 16, "width": 1024},
    "small": {"layers": 6, "heads": 6, "width": 384, "context": 128, "vocabulary": 512},
}
TINY = {"layers": 2, "heads": 2, "width": 64, "context": 32, "vocabulary": 512}
LLAMA_7B = {"layers": 32, "heads": 32, "width": 4096, "inner": 11008, "context": 2048, "vocabulary": 32000}
LLAMA_13B = {"layers": 40, "heads": 40, "width": 5120, "inner": 13824, "context": 2048, "vocabulary": 32000}
TINY_LLAMA = TINY | {"inner": 96}
# Shapes of published models, by their configs in Transformers; `rows` are those of a step, and `tiny` makes it small.
TINY_KIND = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY_TEXT = TINY_KIND | {"num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}


def text_model(kind, layers, heads, pairs, width, inner, vocabulary, **more):
    """A model of text whose heads share their keys and values with others."""
    config = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "hidden_size": width,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32768,
        "use_cache": False,
        **more,
    }
    return {"kind": kind, "config": config, "context": 2048, "rows": 32, "tiny": TINY_TEXT}


OTHERS = {
    "qwen2": text_model("qwen2", 28, 12, 2, 1536, 8960, 151936, tie_word_embeddings=True),
    "llama": text_model("llama", 16, 32, 8, 2048, 8192, 128256, tie_word_embeddings=True),
    "gemma": text_model("gemma3_text", 26, 4, 1, 1152, 6912, 262144, head_dim=256),
    "mixtral": text_model("mixtral", 16, 16, 8, 1024, 3584, 32000, num_local_experts=8),
    "vit": {
        "kind": "vit",
        "config": TINY_KIND
        | {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 16}
        | {"image_size": 224, "patch_size": 14, "num_labels": 256},
        "context": 257,
        "rows": 256,
        "tiny": TINY_KIND | {"image_size": 28},
    },
}
TINY_DIT = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16, "sample_size": 8}
OTHERS["dit"] = {
    "kind": "dit",
    "config": {"num_layers": 28, "num_attention_heads": 16, "attention_head_dim": 72, "sample_size": 32}
    | {"in_channels": 4, "out_channels": 8, "patch_size": 2},
    "context": 256,
    "rows": 256,
    "tiny": TINY_DIT,
}
OTHERS["llama-32k"] = text_model("llama", 22, 32, 4, 2048, 5632, 32000) | {"context": 32768, "rows": 2}
QWEN3_30B = text_model(
    "qwen3_moe",
    48,
    32,
    4,
    2048,
    6144,
    151936,
    head_dim=128,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
)
QWEN3_32B = text_model("qwen3", 64, 64, 8, 5120, 25600, 151936, head_dim=128)
QWEN3_30B["tiny"] = TINY_TEXT | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
COMPACT = {"state": "compact"}
Q4 = COMPACT | {"codec": "q4"}
FOUR_SLOTS = {"config": {"csd.slots": 4}}
UNFLUSHED = {"durability": "none"}
DELTA = {"gather.codec": "delta"}
Q4_SLOTS = Q4 | {"devices": 8, "config": {"csd.slots": 4}}  # files that are made at once; and no state stays on the GPU
BF16_SUMS = {"accumulation_dtype": "bfloat16"}  # as PyTorch adds gradients to p.grad
QUARTER_GB = 12 * 1.558e9 / 4 / 1e9  # of host memory, for rows `quarter`, whose parameters stay in storage, too
LATER_GB = 1  # taken of it after the start, by compilers and kernels
QUARTER = {
    "codec": "q4",
    "devices": 2,
    "stream": {"gpu_memory_gb": 60, "host_memory_gb": QUARTER_GB - LATER_GB},
} | FOUR_SLOTS

# Settings of DeepSpeed's section zero_optimization, and of bf16. With `coalesces` the gradients of a step's backward
# passes are added up on the GPU, in bf16, and reduced once (DeepSpeedEngine.coalesce_grad_reduction()).
DEEPSPEED_NVME = {
    "stage": 3,
    "sub_group_size": 100_000_000,
    "offload_optimizer": {
        "device": "nvme",
        "pin_memory": True,
        "pipeline_read": True,
        "pipeline_write": True,
        "buffer_count": 12,
    },
}
# DeepSpeed's pipeline parts one by one, for where losses differ.
DEEPSPEED_SERIAL = DEEPSPEED_NVME | {"offload_optimizer": {"device": "nvme", "pin_memory": True, "buffer_count": 12}}
DEEPSPEED_CPU3 = {"stage": 3, "sub_group_size": 100_000_000, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
DEEPSPEED_BF16 = {"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
DEEPSPEED_CPU = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
OWN_Q4 = {"csd.state": "compact", "compress.codec": "q4", "mode": "su+o+c"}
OWN_7B = OWN_Q4 | {"train.global_batch": 8}  # 16,384 tokens
OWN_LARGE = OWN_Q4 | {"train.global_batch": 32, "train.micro_batch": 4}
GPT_13B = {"model.layers": 40, "model.heads": 40, "model.width": 5120}
# Options of nearstep.AdamW, settings of DeepSpeed, or keys of the program for rows `own`. Rows `aligned` have a
# vocabulary that is a multiple of 64, as rows `own` have inside: GPUs multiply such matrices faster.
ROWS = {
    "memory-eager": {},
    "memory-compiled": {},
    "memory-aligned": {},
    "nearstep-fp32": {},
    "nearstep-fp32-4-slots": FOUR_SLOTS,
    "nearstep-fp32-4-slots-unflushed": FOUR_SLOTS | UNFLUSHED,
    "nearstep-fp32-q4": {"codec": "q4"},
    "nearstep-fp32-q4-4-slots": {"codec": "q4"} | FOUR_SLOTS,
    "nearstep-fp32-delta-4-slots": {"config": {"csd.slots": 4} | DELTA},
    "nearstep-q4-delta": Q4 | {"config": DELTA},
    "nearstep-fp32-quarter": QUARTER,
    "nearstep-compact-4-slots": COMPACT | FOUR_SLOTS,
    "nearstep-compact": COMPACT,
    "nearstep-q4-4-slots": Q4 | FOUR_SLOTS,
    "nearstep-q4": Q4,
    "nearstep-q4-unflushed": Q4 | UNFLUSHED,
    "nearstep-q4-aligned": Q4,
    "nearstep-q4-unclipped": Q4,
    "nearstep-q4-host": Q4 | {"config": {"csd.device": "host"}},
    "nearstep-q4-delayed": Q4 | {"clipping": "delayed"},
    "own-fp32": {},
    "own-q4": OWN_Q4,
    "own-q4-unclipped": OWN_Q4 | {"train.clip_norm": 1000},
    "own-7b": OWN_7B | {"train.micro_batch": 4},
    "own-7b-16gb": OWN_7B | {"train.micro_batch": 1, "model.gpu_memory_gb": 16},
    "memory-7b": {},
    "nearstep-7b": Q4_SLOTS | {"gpu_memory_gb": 60},
    "nearstep-7b-16gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 16}},
    "nearstep-7b-16gb-bf16-sums": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 16}},
    "nearstep-7b-16gb-host": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 16, "host_memory_gb": 52}},
    "nearstep-7b-16gb-least-host": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 16, "host_memory_gb": 48}},
    "memory-7b-unclipped": {},
    "nearstep-7b-unclipped": Q4_SLOTS | {"gpu_memory_gb": 60},
    "torchao-7b-unclipped": {},
    "nearstep-13b": Q4_SLOTS,
    "nearstep-13b-80gb": Q4_SLOTS | {"gpu_memory_gb": 78},
    "nearstep-13b-stream-80gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 78}},
    "nearstep-13b-80gb-bf16-sums": Q4_SLOTS | BF16_SUMS | {"gpu_memory_gb": 78},
    "nearstep-13b-stream-80gb-bf16-sums": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 78}},
    "nearstep-13b-24gb-bf16-sums": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 24}},
    "nearstep-13b-24gb-host": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 24, "host_memory_gb": 100}},
    "nearstep-32b-80gb-host": Q4_SLOTS | BF16_SUMS | {"stream": {"gpu_memory_gb": 80, "host_memory_gb": 240}},
    "nearstep-7b-bf16-sums": Q4_SLOTS | BF16_SUMS | {"gpu_memory_gb": 60},
    "nearstep-7b-fp32": {"devices": 8, "gpu_memory_gb": 60},
    "nearstep-13b-16gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 16}},
    "nearstep-7b-24gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 24}},
    "nearstep-7b-all": Q4_SLOTS,
    "nearstep-13b-24gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 24}},
    "memory-fp8-7b": {},
    "nearstep-fp8-7b": Q4_SLOTS | {"gpu_memory_gb": 60},
    "nearstep-fp8-7b-22gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 22}},
    "nearstep-fp8-7b-24gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 24}},
    "nearstep-7b-tier": Q4_SLOTS | UNFLUSHED | {"config": {"csd.slots": 4, "csd.tiers.gpu": 20}},
    "nearstep-7b-in-gpu": Q4_SLOTS | UNFLUSHED | BF16_SUMS | {"config": {"csd.slots": 16, "csd.tiers.gpu": 28}},
    "memory-30b-lora": {},
    "nearstep-30b-lora-24gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 24}},
    "nearstep-fp8-7b-all": Q4_SLOTS,
    "memory-7b-lora": {},
    "nearstep-7b-lora-16gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 16}},
    "nearstep-7b-lora-24gb": Q4_SLOTS | {"stream": {"gpu_memory_gb": 24}},
    "own-7b-65k": OWN_LARGE,
    "own-13b": OWN_LARGE | GPT_13B,
    "fsdp2-nearstep-7b": Q4_SLOTS,
    "fsdp2-offload-7b": {},
    "fsdp2-memory-7b": {},
    "ddp-nearstep-7b": Q4_SLOTS,
    "ddp-memory-7b": {},
    "deepspeed-nvme": DEEPSPEED_NVME,
    "deepspeed-nvme-bf16": DEEPSPEED_NVME | DEEPSPEED_BF16,
    "deepspeed-cpu": DEEPSPEED_CPU,
    "deepspeed-cpu-bf16-7b": DEEPSPEED_CPU | DEEPSPEED_BF16 | {"coalesces": True},
    "deepspeed-nvme-serial": DEEPSPEED_SERIAL,
    "deepspeed-cpu-stage3": DEEPSPEED_CPU3,
    "deepspeed-zenflow": {
        **DEEPSPEED_CPU,
        "zenflow": {"topk_ratio": 0.05, "select_strategy": "step", "overlap_step": True},
    },
    "deepspeed-superoffload": {
        "stage": 3,
        "sub_group_size": 100_000_000,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "super_offload": True},
    },
    "drive": {},
    **{f"memory-{name}": {} for name in OTHERS},
    **{f"nearstep-{name}": Q4 for name in OTHERS},
    "nearstep-llama-32k-stream": Q4 | {"stream": {"gpu_memory_gb": 40}},
}
LARGE_ROWS = 32  # of a step: 65,536 tokens
# Shape, rows of a micro-batch, and seconds that a row may take.
LARGE = {
    "memory-7b": (LLAMA_7B, 2, 200),
    "fsdp2-nearstep-7b": (LLAMA_7B, 2, 300),
    "fsdp2-offload-7b": (LLAMA_7B, 2, 400),
    "fsdp2-memory-7b": (LLAMA_7B, 2, 300),
    "ddp-nearstep-7b": (LLAMA_7B, 2, 300),
    "ddp-memory-7b": (LLAMA_7B, 2, 300),
    "deepspeed-cpu-bf16-7b": (LLAMA_7B, 2, 400),
    "nearstep-7b": (LLAMA_7B, 2, 300),
    "memory-7b-unclipped": (LLAMA_7B, 2, 200),
    "nearstep-7b-unclipped": (LLAMA_7B, 2, 300),
    "torchao-7b-unclipped": (LLAMA_7B, 2, 300),
    "nearstep-7b-16gb": (LLAMA_7B, 8, 360),
    "nearstep-7b-16gb-bf16-sums": (LLAMA_7B, 8, 360),
    "nearstep-7b-16gb-host": (LLAMA_7B, 8, 360),
    "nearstep-7b-16gb-least-host": (LLAMA_7B, 4, 360),
    "nearstep-7b-bf16-sums": (LLAMA_7B, 2, 300),
    "nearstep-13b-80gb-bf16-sums": (LLAMA_13B, 2, 480),
    "nearstep-13b-stream-80gb-bf16-sums": (LLAMA_13B, 16, 480),
    "nearstep-13b-24gb-bf16-sums": (LLAMA_13B, 8, 540),
    "nearstep-13b-24gb-host": (LLAMA_13B, 8, 540),
    "nearstep-32b-80gb-host": (QWEN3_32B, 4, 580),
    "nearstep-13b": (LLAMA_13B, 2, 480),
    "nearstep-13b-80gb": (LLAMA_13B, 2, 480),
    "nearstep-13b-stream-80gb": (LLAMA_13B, 16, 480),
    "nearstep-7b-fp32": (LLAMA_7B, 2, 480),
    "nearstep-13b-16gb": (LLAMA_13B, 8, 540),
    "nearstep-7b-24gb": (LLAMA_7B, 8, 360),
    "nearstep-7b-all": (LLAMA_7B, 8, 300),
    "nearstep-13b-24gb": (LLAMA_13B, 8, 540),
    "memory-fp8-7b": (LLAMA_7B, 2, 300),
    "nearstep-fp8-7b": (LLAMA_7B, 2, 400),
    "nearstep-fp8-7b-22gb": (LLAMA_7B, 8, 400),
    "nearstep-fp8-7b-24gb": (LLAMA_7B, 8, 400),
    "nearstep-7b-tier": (LLAMA_7B, 8, 300),
    "nearstep-7b-in-gpu": (LLAMA_7B, 4, 300),
    "memory-30b-lora": (QWEN3_30B, 4, 300),
    "nearstep-30b-lora-24gb": (QWEN3_30B, 8, 300),
    "nearstep-fp8-7b-all": (LLAMA_7B, 8, 400),
    "memory-7b-lora": (LLAMA_7B, 4, 200),
    "nearstep-7b-lora-16gb": (LLAMA_7B, 8, 240),
    "nearstep-7b-lora-24gb": (LLAMA_7B, 8, 240),
    **{
        f"{way}-{name}": (shape, max(1, shape["rows"] // 4), 200)
        for name, shape in OTHERS.items()
        for way in ("memory", "nearstep")
    },
    "nearstep-llama-32k-stream": (OTHERS["llama-32k"], 1, 200),
}


def smaller(shape):
    """Returns the shape of a tiny model of the same kind."""
    if "kind" not in shape:
        return TINY_LLAMA if "inner" in shape else TINY
    context = {"vit": 5, "dit": 16}.get(shape["kind"], 32)
    return shape | {"config": shape["config"] | shape["tiny"], "context": context}

"""The cases of equality_worker.py by number of ranks, and the packages they need besides PyTorch."""

ON_RANKS = {
    1: [
        "gpt2_groups_cosine_clipping",
        "gpt2_accumulation_learned",
        "gpt2_accumulation_given",
        "lion",
        "never_used",
        "used_in_some_steps",
        "used_in_some_steps_with_adamw",
        "many_groups",
        "bf16",
        "fp16",
        "lora",
        "same_bits_twice",
        "order_of_gradients",
        "recorded_gradients",
        "compact_state",
    ],
    2: [
        "batches_that_one_rank_drops",
        "ways_in_which_one_rank_drops",
        "parameters_that_all_ranks_write",
        "values_that_all_ranks_write",
        "streamed_values_count_once",
        "gpt2_groups_cosine_clipping",
        "gpt2_empty",
        "llama_streamed",
        "bert",
        "bloom_accumulation",
        "vit",
        "qwen2_frozen_embeddings",
        "used_on_one_rank",
        "used_in_some_steps_with_adamw",
        "many_groups",
        "same_bits_twice",
        "order_of_gradients",
        "recorded_gradients",
        "evaluation_on_rank_0",
        "start_values_of_rank_0",
        "other_settings",
        "ranks_divide_the_paths",
    ],
    4: ["gpt2_groups_cosine_clipping", "llama_accumulation"],
}
ON_GPUS = {2: ["streamed_values_count_once"]}
_NETWORKS = ("gpt2", "bert", "bloom", "vit", "qwen2", "llama", "lora")
NEEDS = {
    name: ("transformers",) + (("peft",) if name == "lora" else ())
    for names in ON_RANKS.values()
    for name in names
    if name.startswith(_NETWORKS)
}

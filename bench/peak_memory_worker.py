"""A Python row of bench/peak_memory: starts training from the weights, and takes a step.

    peak_memory_worker.py ROW WEIGHTS STATE CODEC TOKENS

Prints a word after each phase.
"""

import sys

import torch
import transformers

import nearstep

row, weights, state, codec, tokens = sys.argv[1:]
tiny = transformers.GPT2LMHeadModel(
    transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
)
tiny(
    input_ids=torch.zeros(1, 4, dtype=torch.int64)
).logits.sum().backward()  # imports and allocates what every model needs
del tiny
print("imported", flush=True)
settings = {}
if row.startswith("empty"):
    with nearstep.empty():
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(weights), dtype=torch.bfloat16
        )
    settings = {"weights": weights}
else:
    model = transformers.AutoModelForCausalLM.from_pretrained(weights, dtype=torch.bfloat16)
opt = nearstep.AdamW(
    nearstep.groups(model),
    lr=1e-4,
    path=state,
    state="compact",
    codec=codec,
    durability="none",
    accumulation=1,
    config={"csd.slots": 4},
    **settings,
)
opt.resume()
print("started", flush=True)
batch = torch.arange(int(tokens))[None]
loss = model(input_ids=batch, labels=batch).loss
loss.backward()
opt.step()
opt.finish()
if not torch.isfinite(loss):
    sys.exit(f"the loss is {loss.item()}")

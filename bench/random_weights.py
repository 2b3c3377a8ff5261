"""Writes random weights as a published model of Transformers has them, a file for each layer: a job of
bench/from_storage and bench/peak_memory, which gives the folder, the kind of model and its config as JSON."""

import json
import pathlib
import re
import sys

import safetensors.torch
import torch
import transformers

import nearstep

job = json.loads(sys.argv[1])
folder = pathlib.Path(job["folder"])
with nearstep.empty():
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(job["kind"], **job["config"]), dtype=torch.bfloat16
    )
device = "cuda" if torch.cuda.is_available() else "cpu"
generator, parts, places = torch.Generator(device).manual_seed(3), {}, {}
for name, p in model.named_parameters():
    layer = re.search(r"\.(layers|h)\.\d+\.", name)
    parts.setdefault(layer[0] if layer else name, []).append((name, p.shape))
for number, part in enumerate(parts.values()):
    file = f"model-{number:05}.safetensors"
    means = {name: 1.0 if re.search(r"(norm|ln_\w).weight$", name) else 0.0 for name, _ in part}
    safetensors.torch.save_file(
        {
            name: torch.empty(shape, dtype=torch.bfloat16, device=device)
            .normal_(means[name], 0.02, generator=generator)
            .cpu()
            for name, shape in part
        },
        folder / file,
    )
    places.update((name, file) for name, _ in part)
(folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
model.config.architectures = [type(model).__name__]
model.config.save_pretrained(folder)
print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))

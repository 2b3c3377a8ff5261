"""Cases of equality_worker.py: networks of transformers, and how gradients add up in them."""

import copy

import torch

import nearstep
import networks
from in_memory import FOLDER, RANK, RANKS, STEPS, batches, expect, groups_in_memory, network, state, train_both


def gpt2_groups_cosine_clipping():
    """The head is tied to the embedding."""
    from transformers import get_cosine_schedule_with_warmup

    ours, theirs = network("gpt2")
    expect(ours.lm_head.weight is ours.transformer.wte.weight, "the head is tied")
    opt = nearstep.AdamW(nearstep.groups(ours, weight_decay=0.1), lr=2e-3, clip_norm=0.5, **state())
    reference = torch.optim.AdamW(groups_in_memory(theirs, 0.1), lr=2e-3)
    schedulers = [get_cosine_schedule_with_warmup(one, 5, STEPS) for one in (opt, reference)]
    train_both(ours, theirs, opt, reference, batches("gpt2", RANKS), schedulers=schedulers, clip_norm=0.5)
    expect(ours.lm_head.weight is ours.transformer.wte.weight, "the head is tied still")
    expect([g["lr"] for g in opt.param_groups] == [g["lr"] for g in reference.param_groups], "learning rates")
    opt.finish()
    facts = opt.stats()
    expect(facts["step"] == STEPS and facts["norm"] > 0 and not facts["is_skipped"], f"{facts}")
    opt.close()


def gpt2_empty():
    """Each rank reads its own tiles of the files."""
    theirs = networks.make("gpt2")

    def emptied(weights, name):
        with nearstep.empty():
            ours = type(theirs)(theirs.config)
        return ours, nearstep.AdamW(ours, lr=1e-3, weights=weights, **state(name))

    folder = FOLDER / f"weights-{RANK}"
    theirs.save_pretrained(folder)
    ours, opt = emptied(folder, "state")
    train_both(ours, theirs, opt, torch.optim.AdamW(theirs.parameters(), lr=1e-3), batches("gpt2", RANKS))
    opt.close()
    networks.make("gpt2").to(torch.bfloat16 if RANK else torch.float32).save_pretrained(folder)
    ours, opt = emptied(folder, "mixed")
    try:
        opt.resume()
    except ValueError as error:
        expect("The ranks read different weights" in str(error), str(error))
    else:
        expect(False, "files in two formats are refused")


def llama_streamed():
    """More layers than slots."""
    shape = networks.make("llama").config.to_dict() | {"num_hidden_layers": 4}
    torch.manual_seed(6)
    theirs = type(networks.make("llama"))(type(networks.make("llama").config)(**shape))
    ours = copy.deepcopy(theirs)
    opt = nearstep.AdamW(nearstep.groups(ours, weight_decay=0.1), lr=1e-3, stream=nearstep.Stream(slots=2), **state())
    reference = torch.optim.AdamW(groups_in_memory(theirs, 0.1), lr=1e-3)
    train_both(ours, theirs, opt, reference, batches("llama", RANKS), steps=12)
    opt.close()


def _accumulation(name, count, **settings):
    ours, theirs = network(name)
    opt = nearstep.AdamW(ours, lr=1e-3, **settings, **state())
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step / 10)) for one in (opt, reference)]
    train_both(ours, theirs, opt, reference, batches(name, RANKS * count), accumulation=count, schedulers=schedulers)
    opt.close()


def gpt2_accumulation_learned():
    _accumulation("gpt2", 3)


def gpt2_accumulation_given():
    _accumulation("gpt2", 2, accumulation=2)


def bloom_accumulation():
    _accumulation("bloom", 2)


def llama_accumulation():
    _accumulation("llama", 2, accumulation=2)


def _plain(name, change=lambda module: None, made=None, lr=1e-3):
    """The network and its optimizer, trained."""
    ours, theirs = made or network(name, change)
    opt = nearstep.AdamW(ours, lr=lr, **state())
    reference = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=lr)
    train_both(ours, theirs, opt, reference, batches(name, RANKS))
    return ours, opt


def bert():
    _plain("bert")[1].close()


def vit():
    _plain("vit")[1].close()


def qwen2_frozen_embeddings():
    def freeze(module):
        module.get_input_embeddings().weight.requires_grad_(False)

    before = networks.make("qwen2").get_input_embeddings().weight.detach().clone()
    ours, opt = _plain("qwen2", freeze)
    expect(torch.equal(ours.get_input_embeddings().weight, before), "embeddings are frozen")
    opt.close()


def lora():
    import peft

    def adapted():
        torch.manual_seed(3)
        settings = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(networks.make("gpt2"), settings)

    base = {name: p.detach().clone() for name, p in adapted().named_parameters() if "lora_" not in name}
    ours, opt = _plain("gpt2", made=(adapted(), adapted()), lr=1e-2)
    expect(all("lora_" in name for name in opt._names) and len(opt._names) == 4, f"trained: {opt._names}")
    expect(opt.stats()["bytes"]["internal_read"] < 4 * 4 * 65536, "only the adapters are in the state")
    for name, p in ours.named_parameters():
        expect("lora_" in name or torch.equal(p, base[name]), f"{name} is frozen")
    opt.close()

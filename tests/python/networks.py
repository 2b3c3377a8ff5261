"""Tiny networks of transformers, and batches for them."""

import torch

VOCABULARY = 96
LENGTH = 12


def make(name):
    """A network with two layers of width 64 and no dropout, always with the same start values."""
    import transformers as t

    torch.manual_seed(5)
    if name == "gpt2":
        return t.GPT2LMHeadModel(
            t.GPT2Config(
                n_layer=2,
                n_head=4,
                n_embd=64,
                vocab_size=VOCABULARY,
                n_positions=32,
                resid_pdrop=0,
                embd_pdrop=0,
                attn_pdrop=0,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    if name == "bert":
        return t.BertForMaskedLM(
            t.BertConfig(
                num_hidden_layers=2,
                num_attention_heads=4,
                hidden_size=64,
                intermediate_size=128,
                vocab_size=VOCABULARY,
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
            )
        )
    if name == "bloom":
        return t.BloomForCausalLM(
            t.BloomConfig(
                n_layer=2, n_head=4, hidden_size=64, vocab_size=VOCABULARY, hidden_dropout=0, attention_dropout=0
            )
        )
    if name == "vit":
        return t.ViTForImageClassification(
            t.ViTConfig(
                num_hidden_layers=2,
                num_attention_heads=4,
                hidden_size=64,
                intermediate_size=128,
                image_size=16,
                patch_size=4,
                num_labels=10,
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
            )
        )
    shape = dict(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_size=64,
        intermediate_size=128,
        vocab_size=VOCABULARY,
        attention_dropout=0,
    )
    if name == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**shape))
    if name == "qwen2":
        return t.Qwen2ForCausalLM(t.Qwen2Config(**shape))
    if name == "mixtral":
        return t.MixtralForCausalLM(t.MixtralConfig(**shape, num_local_experts=12))
    if name == "qwen2_moe":
        return t.Qwen2MoeForCausalLM(
            t.Qwen2MoeConfig(**shape, num_experts=4, moe_intermediate_size=32, shared_expert_intermediate_size=32)
        )
    raise KeyError(name)


def descend(loss, optimizer):
    """A step by this loss; returns it as a number."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def inputs(name, count, generator):
    if name == "vit":
        return {
            "pixel_values": torch.randn(count, 3, 16, 16, generator=generator),
            "labels": torch.randint(0, 10, (count,), generator=generator),
        }
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


class Layers(torch.nn.Module):
    """A plain PyTorch network whose layers are separate blocks, always with the same start values."""

    def __init__(self, count=3, width=256):
        super().__init__()
        torch.manual_seed(7)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(count)
        )
        self.width = width

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def loss(self, step, share=0, shares=1, count=8):
        """The loss of this share of the step's batch."""
        generator = torch.Generator().manual_seed(1000 + step)
        x, y = torch.randn(2, count, self.width, generator=generator).chunk(shares, 1)[share]
        return torch.nn.functional.mse_loss(self(x), y)


class Sometimes(Layers):
    """The last layer is used only if is_used(step, share)."""

    def __init__(self, is_used):
        super().__init__(3)
        self.is_used = is_used

    def loss(self, step, share=0, shares=1, count=8):
        generator = torch.Generator().manual_seed(1000 + step % 4)
        x, y = torch.randn(2, count, self.width, generator=generator).chunk(shares, 1)[share]
        for layer in self.layers[: 3 if self.is_used(step, share) else 2]:
            x = layer(x)
        return torch.nn.functional.mse_loss(x, y)

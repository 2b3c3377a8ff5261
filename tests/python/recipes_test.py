"""Tests what docs/pytorch-reference.md says of other recipes: AdaLoRA is compared with torch.optim, on one and on two
ranks."""

import launcher
from package import Package

launcher.need("transformers", "peft")

import peft
import torch
import transformers


def gpt(layers):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=layers,
            n_head=2,
            n_embd=32,
            vocab_size=64,
            n_positions=16,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    )


def adapted():
    return peft.get_peft_model(
        gpt(2),
        peft.AdaLoraConfig(
            init_r=6,
            target_r=2,
            tinit=2,
            tfinal=4,
            deltaT=1,
            total_step=12,
            target_modules=["c_attn"],
            fan_in_fan_out=True,
        ),
    )


def rows_of(step, rank):
    return torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(step % 2 + 10 * rank))


def cut_of(model):
    """Returns which singular values AdaLoRA has cut."""
    return [(p == 0).flatten().tolist() for name, p in model.named_parameters() if "lora_E" in name]


# docs/pytorch-reference.md's lines, on each rank.
OF_A_RANK = """
import sys
import torch, torch.distributed
import nearstep
sys.path.insert(0, {here!r})
from recipes_test import adapted, cut_of, rows_of

torch.distributed.init_process_group("gloo")
model = adapted()
opt = nearstep.AdamW(model, path=sys.argv[1], lr=1e-2, keep_gradients=True)
for step in range(10):
    rows = rows_of(step, opt.rank)
    model(input_ids=rows, labels=rows).loss.backward()
    opt.step()
    for p in model.parameters():
        if p.grad is not None:
            torch.distributed.all_reduce(p.grad)
            p.grad /= opt.ranks
    model.base_model.update_and_allocate(step)
    opt.zero_grad()
sums = [round(float(p.detach().abs().sum()), 2) for p in model.parameters() if p.requires_grad]
print("rank", opt.rank, cut_of(model), *sums[:3], flush=True)
torch.distributed.destroy_process_group()
"""


class Recipes(Package):
    def losses(self, model, optimizer, steps=6, after=lambda step: None):
        losses = []
        for step in range(steps):
            rows = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(step % 2))
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            optimizer.step()
            after(step)
            optimizer.zero_grad()
            losses.append(loss.item())
        return torch.tensor(losses)

    def test_adalora_reads_gradients_that_are_kept(self):
        theirs, ours = adapted(), adapted()
        refused, opt = self.make(adapted(), path=self.folder / "taken")
        self.refuses(
            RuntimeError,
            "keep_gradients=True",
            lambda: self.losses(refused, opt, 1, refused.base_model.update_and_allocate),
        )
        _, opt = self.make(ours, path=self.folder / "kept", lr=1e-2, keep_gradients=True)
        got = self.losses(ours, opt, 10, ours.base_model.update_and_allocate)
        want = self.losses(
            theirs,
            torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-2),
            10,
            theirs.base_model.update_and_allocate,
        )
        torch.testing.assert_close(got, want, rtol=1e-5, atol=0)
        self.assertGreater(sum(map(sum, cut_of(ours))), 0, "ranks were cut")

    def test_adalora_on_two_ranks_cuts_the_same(self):
        script = self.folder / "adalora.py"
        script.write_text(OF_A_RANK.format(here=str(launcher.HERE)))
        worker = launcher.Process(2, script, self.folder / "run")
        self.assertEqual(worker.wait(), 0, worker.text())
        said = dict(line.split(" ", 2)[1:] for line in worker.text().splitlines() if line.startswith("rank "))
        self.assertEqual(sorted(said), ["0", "1"], worker.text())
        self.assertEqual(said["0"], said["1"])
        model = adapted()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for step in range(10):
            optimizer.zero_grad()
            rows = torch.cat([rows_of(step, rank) for rank in range(2)])
            model(input_ids=rows, labels=rows).loss.backward()
            optimizer.step()
            model.base_model.update_and_allocate(step)
        self.assertTrue(said["0"].startswith(str(cut_of(model))), (said["0"], cut_of(model)))
        self.assertGreater(sum(map(sum, cut_of(model))), 0, "ranks were cut")


if __name__ == "__main__":
    launcher.start_forks("torch", "transformers.models.gpt2.modeling_gpt2", "peft")
    launcher.main()

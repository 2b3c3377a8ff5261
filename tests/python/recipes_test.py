"""What docs/pytorch.md says of other recipes: layer-wise rates of 24 groups, AdaLoRA, a GAN with an averaged generator. Each
is compared with torch.optim. One process, one rank; AdaLoRA also on two ranks."""

import launcher
from package import Package

launcher.need("transformers", "peft")

import peft
import torch
import transformers
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import nearstep


def gpt(layers):
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, n_head=2, n_embd=32, vocab_size=64, n_positions=16, bos_token_id=0,
                                                                eos_token_id=0, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def adapted():
    return peft.get_peft_model(gpt(2), peft.AdaLoraConfig(init_r=6, target_r=2, tinit=2, tfinal=4, deltaT=1, total_step=12,
                                                          target_modules=["c_attn"], fan_in_fan_out=True))


def rows_of(step, rank):
    return torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(step % 2 + 10 * rank))


def cut_of(model):
    """Which singular values AdaLoRA has cut."""
    return [(p == 0).flatten().tolist() for name, p in model.named_parameters() if "lora_E" in name]


# docs/pytorch.md's lines, on each rank.
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
print("rank", opt.rank, cut_of(model), *[round(float(p.detach().abs().sum()), 2) for p in model.parameters() if p.requires_grad][:3], flush=True)
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

    def test_24_groups_have_rates_of_their_own(self):
        def groups(model):
            rest = [p for p in model.parameters() if not any(p is q for q in model.transformer.h.parameters())]
            layers = [{"params": [p for p in layer.parameters() if (p.dim() > 1) == is_matrix], "lr": 1e-2 * 0.8 ** (12 - number),
                       "weight_decay": 0.1 * is_matrix} for number, layer in enumerate(model.transformer.h) for is_matrix in (True, False)]
            return [*layers, {"params": rest, "lr": 1e-2}]

        theirs, ours = gpt(12), gpt(12)
        _, opt = self.make(groups(ours), path=self.folder / "groups")
        self.assertEqual(len({group["lr"] for group in opt.param_groups}), 13)
        torch.testing.assert_close(self.losses(ours, opt), self.losses(theirs, torch.optim.AdamW(groups(theirs), lr=1e-3)), rtol=1e-5, atol=0)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=2e-4)

    def test_adalora_reads_gradients_that_are_kept(self):
        theirs, ours = adapted(), adapted()
        refused, opt = self.make(adapted(), path=self.folder / "taken")
        self.refuses(RuntimeError, "keep_gradients=True", lambda: self.losses(refused, opt, 1, refused.base_model.update_and_allocate))
        _, opt = self.make(ours, path=self.folder / "kept", lr=1e-2, keep_gradients=True)
        got = self.losses(ours, opt, 10, ours.base_model.update_and_allocate)
        want = self.losses(theirs, torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-2), 10, theirs.base_model.update_and_allocate)
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

    def test_a_gan_with_an_averaged_generator(self):
        def train(make):
            torch.manual_seed(0)
            generator = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
            critic = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
            averaged = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.8))
            of_generator, of_critic = make(generator, "generator"), make(critic, "critic")
            losses = []
            for step in range(8):
                noise = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
                real = torch.randn(16, 16, generator=torch.Generator().manual_seed(100 + step)) + 1
                of_critic.zero_grad()
                (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
                of_critic.step()
                of_generator.zero_grad()
                loss = -critic(generator(noise)).mean()
                loss.backward()
                of_generator.step()
                averaged.update_parameters(generator)
                losses.append(loss.item())
            with torch.no_grad():
                return torch.tensor(losses), averaged(noise), generator(noise)

        got = train(lambda module, name: self.make(module, path=self.folder / name, lr=1e-2)[1])
        want = train(lambda module, name: torch.optim.AdamW(module.parameters(), lr=1e-2))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        self.assertGreater((want[1] - want[2]).abs().max(), 1e-3, "the average is not the newest")


if __name__ == "__main__":
    launcher.start_forks("torch", "transformers.models.gpt2.modeling_gpt2", "peft")
    launcher.main()

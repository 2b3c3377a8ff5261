"""state_dict(), hooks and what does not apply, as PyTorch's own tests expect it: properties.py."""

import copy
import io
import json
import pickle

import launcher
from properties import Cases, INFOS, inputs, Line, rates, tearDownModule, unlike  # noqa: F401

import torch


class State(Cases):
    # --- state_dict() ---

    def test_state_dict_leads_another_optimizer_to_the_same_step(self):
        for info, desc, settings in inputs():
            # Whether the parameters of one, and of the other, have names.
            mixed = () if settings else ((False, True), (True, False))
            for names in ((False, False), (True, True), *mixed):
                with self.case(
                    "state_dict() is deterministic, and another optimizer goes on from it", info.name, desc, names
                ):
                    self.go_on(info, settings, *names)

    def go_on(self, info, settings, *are_named):
        def named(line, is_named):
            return [(f"name{i}", p) for i, p in enumerate(line.params)] if is_named else line.params

        lines = Line(), Line()
        opt = self.opt(info, named(lines[0], are_named[0]), settings)
        for _ in range(3):
            opt.step(lines[0].closure(opt))
        state = opt.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        for weights_only in (False, True):
            file.seek(0)
            loaded = torch.load(file, weights_only=weights_only)
            place = json.loads(state["param_groups"][0]["nearstep"])
            self.assertEqual(
                loaded,
                {
                    **state,
                    "param_groups": [{**state["param_groups"][0], "nearstep": place}, *state["param_groups"][1:]],
                },
            )
        for group in loaded["param_groups"]:  # as in older files
            group.pop("foreach", None)
        other = self.opt(info, named(lines[1], are_named[1]), settings)
        kept = copy.deepcopy(loaded)
        other.load_state_dict(loaded)
        self.assertEqual(loaded, kept)
        self.equal(lines[1].params, lines[0].params, rtol=0, atol=0)
        for _ in range(3):
            for one, line in zip((opt, other), lines):
                one.step(line.closure(one))
        self.equal(lines[1].params, lines[0].params, rtol=0, atol=0)
        self.assertEqual(other.masters_digest(), opt.masters_digest())
        plain = [one.state_dict() for one in (opt, other)]
        for one in plain:
            for group in one["param_groups"]:
                group.pop("nearstep", None)
                names = group.pop("param_names", None)
                self.assertTrue(names is None or names == ["name0", "name1"])
        self.assertEqual(*plain)

    # --- Hooks ---

    def test_hooks_of_state_dict(self):
        for info in INFOS:
            with self.case("hooks of state_dict() see and change all of it", info.name):
                line = Line()
                opt = self.opt(info, line.params)
                opt.step(line.closure(opt))
                opt.register_state_dict_pre_hook(lambda opt: opt.param_groups[0].update(note="before"))

                def after(opt, state):
                    self.assertEqual(pickle.loads(pickle.dumps(state))["param_groups"][0]["nearstep"]["step"], 1)
                    state["state"].clear()
                    return {"ours": state, "note": state["param_groups"][0]["note"]}

                handle = opt.register_state_dict_post_hook(after)
                wrapped = opt.state_dict()
                self.assertEqual(
                    (wrapped.keys(), wrapped["note"], wrapped["ours"]["state"]), ({"ours", "note"}, "before", {})
                )
                handle.remove()
                self.assertEqual(opt.state_dict()["state"].keys(), {0, 1})

    def test_hooks_of_load_state_dict(self):
        for info in INFOS:
            with self.case("hooks of load_state_dict() come before and after all of it", info.name):
                lines, seen = (Line(), Line()), []
                opt = self.opt(info, lines[0].params)
                opt.step(lines[0].closure(opt))
                opt.save()
                other = self.opt(info, lines[1].params)

                def rate(value):
                    def change(opt, state):
                        seen.append(value)
                        state = state.get("ours", state)
                        return {**state, "param_groups": [{**group, "lr": value} for group in state["param_groups"]]}

                    return change

                other.register_load_state_dict_pre_hook(rate(0.002))
                other.register_load_state_dict_pre_hook(rate(0.003), prepend=True)
                other.register_load_state_dict_post_hook(
                    lambda one: seen.append((one.steps, one.has_begun, lines[1].weight.equal(lines[0].weight)))
                )
                other.load_state_dict({"ours": opt.state_dict()})
                self.assertEqual((rates(other), seen), ([0.002], [0.003, 0.002, (1, True, True)]))

    def test_hooks_of_step(self):
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        for info in INFOS:
            for is_trained in (True, False):
                with self.case("hooks of step() run in order until they are removed", info.name, is_trained):
                    line, data = Line(), []
                    for p in line.params:
                        p.requires_grad_(is_trained)
                    opt = self.opt(info, line.params)
                    handles = [
                        register_optimizer_step_pre_hook(lambda *_: data.append(0)),
                        register_optimizer_step_post_hook(lambda *_: data.append(5)),
                        opt.register_step_pre_hook(lambda *_: data.append(1)),
                        opt.register_step_post_hook(lambda *_: data.append(2)),
                    ]
                    for wanted in ([0, 1, 2, 5], [0, 1, 2, 5] * 2):
                        if is_trained:
                            line.closure(opt)()
                        opt.step()
                        self.assertEqual(data, wanted)
                    for handle in handles:
                        handle.remove()
                    opt.zero_grad()
                    opt.step()
                    self.assertEqual(data, [0, 1, 2, 5] * 2)

    # --- What does not apply ---

    def test_what_does_not_apply_raises(self):
        for info in INFOS:

            def refuse(name, kind, words, work):
                with self.case(name, info.name, of=unlike):
                    self.refuses(kind, words, work)

            for dtype in (torch.complex64, torch.float64):
                refuse(
                    "complex and float64 parameters",
                    ValueError,
                    str(dtype),
                    lambda: self.opt(info, [torch.nn.Parameter(torch.ones(3, dtype=dtype))]),
                )
            embedding = torch.nn.Embedding(9, 4, sparse=True)
            opt = self.opt(info, embedding.parameters())
            refuse("sparse gradients", ValueError, "sparse", lambda: embedding(torch.tensor([1, 2])).sum().backward())
            embedding.weight.grad = torch.ones(9, 4).to_sparse()
            refuse("sparse gradients", ValueError, "sparse", self.opt(info, embedding.parameters()).step)
            line = Line()
            opt = self.opt(info, line.params)
            for _ in range(2):  # before and after the first step
                refuse("deepcopy and pickle", TypeError, "cannot be copied", lambda: copy.deepcopy(opt))
                refuse("deepcopy and pickle", TypeError, "cannot be pickled", lambda: pickle.dumps(opt))
                refuse(
                    "add_param_group() later",
                    RuntimeError,
                    "all parameter groups",
                    lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]}),
                )
                refuse(
                    "entries of one's own in opt.state", RuntimeError, "in storage", lambda: opt.state.update(test=1)
                )
                refuse(
                    "entries of one's own in opt.state",
                    RuntimeError,
                    "in storage",
                    lambda: opt.state.__setitem__("test", 1),
                )
                refuse(
                    "a state of torch.optim's",
                    ValueError,
                    "opt.state_dict()",
                    lambda: opt.load_state_dict(info.optim_cls(Line().params).state_dict()),
                )
                opt.step(line.closure(opt))


if __name__ == "__main__":
    launcher.main()

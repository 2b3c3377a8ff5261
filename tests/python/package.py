"""Helps tests of the Python package in one process, on one rank: makes optimizers, trains with them, and checks
refusals. Where PyTorch or nearstep is missing, the program that imports this ends as one that was skipped."""

import contextlib
import io

import launcher

launcher.need()

import torch  # noqa: E402

import nearstep  # noqa: E402
import networks  # noqa: E402

FLAGS = ("--set", "--fresh", "--from", "--resume", "csd.path", "csd.state", "compress.codec")


class Package(launcher.FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "state"
        self.opened = []
        self.addCleanup(lambda: [opt.close() for opt in self.opened])

    def make(self, model=None, cls=None, **settings):
        """A model and its optimizer."""
        model = model or networks.Layers(2, 160)
        settings = {
            "path": self.path,
            "lr": 1e-3,
            "config": {"checkpoint.path": str(self.folder / "checkpoints")},
            **settings,
        }
        opt = (cls or nearstep.AdamW)(model, **settings)
        self.opened.append(opt)
        return model, opt

    def train(self, model, opt, first, last):
        return [networks.descend(model.loss(step), opt) for step in range(first, last)]

    def trained(self, steps=3):
        """Leaves a run in the folder; returns its digest."""
        model, opt = self.make()
        self.train(model, opt, 0, steps)
        digest = opt.masters_digest()
        opt.close()
        return digest

    def assert_kept(self, digest, steps=3):
        _, opt = self.make()
        self.assertEqual(opt.resume(), steps)
        self.assertEqual(opt.masters_digest(), digest)
        opt.close()

    def assert_equal_tensors(self, found, wanted):
        """Compares the bits of named tensors: dictionaries, or modules' lists."""
        found, wanted = dict(found), dict(wanted)
        self.assertEqual(list(found), list(wanted))
        self.assertEqual([name for name, value in found.items() if not torch.equal(value, wanted[name])], [])

    def said_by(self, work):
        """Returns what `work` writes to standard error."""
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            work()
        return shown.getvalue()

    def refuses(self, kind, stated, work):
        """Checks the exception's kind and the fact or facts that it states; returns its message."""
        with self.assertRaises(kind) as caught:
            work()
        message = str(caught.exception)
        self.assert_states(message, *(stated if isinstance(stated, tuple) else (stated,)))
        self.assertNotIn("\n", message)
        for flag in FLAGS:
            self.assertNotIn(flag, message, "a flag of the command line")
        return message

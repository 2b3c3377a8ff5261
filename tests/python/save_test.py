"""Runs that save into one folder keep each other's checkpoints and their own data beside them. One process,
one rank.
"""

import contextlib
import io
import pathlib

import launcher

launcher.need()

import nearstep
import networks


class SharedFolder(launcher.FolderTest):
    def run_steps(self, state, steps, extra, save=None, is_resuming=False):
        """Trains and saves; returns the checkpoint's path and what opt.extra was."""
        model = networks.Layers(2, 160)
        opt = nearstep.AdamW(
            model,
            path=self.folder / state,
            lr=1e-3,
            fresh=not is_resuming,
            durability="checkpoint",
            config={"checkpoint.path": str(self.folder / "shared")},
        )
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                if is_resuming:
                    opt.resume()
                found = getattr(opt, "extra", None)
                for step in range(steps):
                    networks.descend(model.loss(step), opt)
                return pathlib.Path(opt.save(save, extra=extra)), found
        finally:
            opt.close()

    def test_each_run_keeps_its_checkpoints_and_its_data(self):
        for save in (None, self.folder / "named"):
            with self.subTest(save):
                first, _ = self.run_steps(f"first-{save is None}", 2, {"of": "first"}, save)
                second, _ = self.run_steps(f"second-{save is None}", 2, {"of": "second"}, save)
                later, _ = self.run_steps(f"third-{save is None}", 4, {"of": "third"}, save)
                for path in (first, second, later):
                    self.assertTrue(path.is_file())
                    self.assertTrue((path.parent / path.name.replace(".h5", ".extra.json")).is_file())
                self.assertEqual(len({first.parent, second.parent, later.parent}), 3)
        for state, steps in (("first-True", 2), ("second-True", 2), ("third-True", 4)):
            path, found = self.run_steps(state, 1, None, is_resuming=True)
            self.assertEqual(found, {"of": state.split("-")[0]})
            self.assertEqual(path.name, f"step-{steps + 1:08}.h5")


if __name__ == "__main__":
    launcher.main()

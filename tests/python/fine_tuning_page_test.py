"""docs/fine-tuning.md: its programs are saved under their names, and its commands run in order in one shell."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import launcher

launcher.need("nearstep_tokenize", "numpy", "tokenizers", "transformers", "peft", "trl", "datasets")

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = launcher.WORKERS_LIMIT_S


def script_of(page):
    """The page as a script of Bash. A program is preceded by its name: "... `train.py` ...:"."""
    lines = ["set -euo pipefail"]
    for found in re.finditer(r"\n```(\w+)\n(.*?)```", page, re.DOTALL):
        kind, block = found.groups()
        if kind == "python":
            paragraph = page[: found.start()].rpartition("\n\n")[2]
            name = re.findall(r"Save\s(?:it|this)\sas\s`(\w+\.py)`", paragraph)[-1]
            block = f"cat > {name} <<'END_OF_PROGRAM'\n{block}END_OF_PROGRAM"
        lines.append(block)
    return "\n".join(lines)


class FineTuningPage(launcher.FolderTest):
    def run_script(self, script):
        """Returns what the script prints. Every process that it leaves behind is killed."""
        environment = launcher.environment(
            OMPI_MCA_rmaps_base_oversubscribe="1",
            OMPI_MCA_btl_vader_single_copy_mechanism="none",
            CUDA_VISIBLE_DEVICES="",
        )
        environment["PATH"] = f"{pathlib.Path(sys.executable).parent}:{environment['PATH']}"
        if launcher.python() != sys.executable:
            programs = self.folder / "bin"
            programs.mkdir()
            (programs / "python").symlink_to(launcher.python())
            environment["PATH"] = f"{programs}:{environment['PATH']}"
        with open(self.folder / "output.txt", "w+") as output:
            process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(LIMIT_S)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
            output.seek(0)
            said = output.read()
        self.assertEqual(code, 0, said[-4000:])
        return said

    def test_every_line_runs_and_what_it_promises_comes_true(self):
        shutil.copytree(ROOT / "docs", self.folder / "docs", ignore=shutil.ignore_patterns("figures"))
        script = script_of((ROOT / "docs/fine-tuning.md").read_text(encoding="utf-8"))
        # A run that is killed stands still at the words for which the page waits: later ones may be lost with it.
        script, killed = re.subn(
            r"^(.*python )(.*\.log.*&\n.*grep -q (\".*?\"))",
            rf"\1'{launcher.HERE}/standing_still.py' \3 \2",
            script,
            flags=re.MULTILINE,
        )
        self.assertEqual(killed, 3)
        said = self.run_script(script)
        folder = self.folder / "runs/fine-tuning"
        for how in ("full", "lora"):
            with self.subTest(how=how):
                before, after = (
                    list(map(int, re.findall(rf"{how}: step (\d+) ", text)))
                    for text in ((folder / f"{how}.log").read_text(), said)
                )
                self.assertLess(before[-1], 40, "the run ended before it was killed")
                # A kill came after it said step 5. The last step said is not durable, the one before perhaps not.
                self.assertGreaterEqual(after[0], max(5, before[-1]) - 1, "the killed run did not go on")
                self.assertEqual(after, list(range(after[0], 41)))
                self.assertLessEqual(after[0], before[-1] + 2, "a step was left out")
        self.assertTrue((folder / "adapter/adapter_model.safetensors").exists())
        losses = {name: float(loss) for name, loss in re.findall(r"^(\w+): (\S+) nats per token$", said, re.MULTILINE)}
        self.assertLess(losses["tuned"], losses["base"] - 0.5)
        self.assertLess(losses["merged"], losses["base"] - 0.1)
        self.assertGreater(float(re.search(r"^accuracy (\S+)$", said, re.MULTILINE)[1]), 0.9)
        self.assertRegex(said, r"(?m)^sentences.tokens: \d+ tokens")
        of_answers = [float(loss) for loss in re.findall(r"\{'loss': '([0-9.]+)'", said)]
        self.assertTrue(5 < len(of_answers) < 60, "the killed run did not go on")
        self.assertLess(sum(of_answers[-5:]) / 5, 3.5, "6.9 at the start")
        self.assertTrue((folder / "instructed/model.safetensors").exists())
        # The words of a tiny model depend on every word of docs/.
        self.assertRegex(said, r"The state of the\s*\S")


if __name__ == "__main__":
    launcher.start_forks("torch", "transformers.models.gpt2.modeling_gpt2", "peft", "numpy", "trl", "datasets")
    launcher.main()

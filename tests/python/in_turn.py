"""Runs tests of one process and one rank in turn, each in a fork of a process that has imported PyTorch, Transformers
and PEFT, which takes longer than most of these tests: in_turn.py NAME... runs NAME_test.py. CMake registers it."""

import subprocess
import sys

import launcher
import verdict

launcher.need()

if __name__ == "__main__":
    launcher.start_forks(
        "torch",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama",
        "peft",
        launcher.COMPILER,
    )
    codes = {}
    for name in sys.argv[1:]:
        print(f"{name}_test.py:", flush=True)
        codes[name] = subprocess.run([launcher.python(), launcher.HERE / f"{name}_test.py"], check=False).returncode
    failed = [name for name, code in codes.items() if code not in (0, verdict.SKIPPED)]
    print(f"{len(codes)} files, failed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed else min(codes.values()))

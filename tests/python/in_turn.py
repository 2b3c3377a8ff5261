"""Runs tests one after another, each in a fork of a process that has imported what they need, which takes longer than
most of these tests: in_turn.py MODULE... -- NAME... runs NAME_test.py. CMake registers it."""

import subprocess
import sys

import launcher
import verdict

launcher.need()

if __name__ == "__main__":
    end = sys.argv.index("--")
    launcher.start_forks("torch", *sys.argv[1:end], launcher.COMPILER)
    codes = {}
    for name in sys.argv[end + 1 :]:
        print(f"{name}_test.py:", flush=True)
        codes[name] = subprocess.run([launcher.python(), launcher.HERE / f"{name}_test.py"], check=False).returncode
    failed = [name for name, code in codes.items() if code not in (0, verdict.SKIPPED)]
    print(f"{len(codes)} files, failed: {', '.join(failed) or 'none'}")
    sys.exit(1 if failed else min(codes.values()))

"""Checks that every file that docs/architecture.md names in its tables is there, and that 20 questions are answered.

    check_docs.py ROOT
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
rows = re.findall(r"^\| .*\? \| `([^`]+)` \|$", (root / "docs/architecture.md").read_text(), re.MULTILINE)
missing = [name for name in rows if not (root / name).is_file()]
for name in missing:
    print(f"docs/architecture.md names {name}, which there is not")
if len(rows) < 20:
    print(f"docs/architecture.md answers {len(rows)} questions, not 20")
sys.exit(bool(missing) or len(rows) < 20)

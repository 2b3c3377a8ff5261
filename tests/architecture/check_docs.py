"""Checks that every file named in the tables of docs/architecture.md exists, that 20 questions are answered, and that
the targets of links in documents exist: files, and headings in them.

    check_docs.py ROOT
"""
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
faults = []

rows = re.findall(r"^\| .*\? \| (.*`.*) \|$", (root / "docs/architecture.md").read_text(), re.MULTILINE)
for names in (re.findall(r"`([^`]+)`", row) for row in rows):
    beside = pathlib.Path(names[0]).parent  # a name without a folder is in that of the row's first
    faults += [f"docs/architecture.md names {name}, which is not there." for name in names
               if not any((root / place).is_file() for place in (name, beside / name))]
if len(rows) < 20:
    faults.append(f"docs/architecture.md answers {len(rows)} questions, not 20.")


def anchors(path):
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


listed = subprocess.run(["git", "-C", root, "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
links = 0
for document in (root / name for name in listed):
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        links += 1
        name, _, anchor = target.partition("#")
        linked = document.parent / name if name else document
        if not linked.exists():
            faults.append(f"{document.relative_to(root)} links to {target}, which is not there.")
        elif anchor and anchor not in anchors(linked):
            faults.append(f"{document.relative_to(root)} links to {target}: there is no such heading.")
print(f"{len(rows)} questions, {links} links in {len(listed)} documents")
print("\n".join(faults))
sys.exit(bool(faults) or links == 0)

"""Checks that docs/source-index.md says what each source does, in the words of the source's first comment, which says
who calls it; that C++ of tests begins with a comment; that no comment or docstring begins without its subject; that the
files, options and keys that documents name, and the sources that comments name, exist; that the targets of links in
documents exist: files, and headings in them; that docs/environment.md has the variables that the code reads, and no
more than are allowed; that lines of all files that people write have at most 120 columns, except rows of tables in
documents and pragmas, which have no second line; that cells of tables on the pages that a user reads first have at most
12 words; and that sources have at most 450 lines. With --write, writes the index first.

    check_docs.py ROOT [--write] [--tests-of BUILD]     the second option also looks for the tests that documents name
"""

import ast
import pathlib
import re
import subprocess
import sys
import textwrap

INDEXED = ("include", "src", "mpi", "fpga", "python")
HEADERS, SOURCES = (".hpp", ".cuh"), (".cpp", ".cu")
MOST_VARIABLES = 28
MOST_WORDS = 12  # in a cell of a table of the pages that a user reads first
FIRST_PAGES = ("README.md", *(f"docs/{name}.md" for name in ("distributed", "fine-tuning", "pytorch", "training")))
MOST_LINES = 450
# How a source says who calls it. A program has no caller, and a part of a class its own.
CALLER = re.compile(
    r"\b(?:Called|Used|Chosen|Made|Exported|Launched|Imported|chosen by|chooses|calls?|compiles|Only \S+ includes)\b"
    r"|^The program|^The command|^For ``|^launch/|The part of"
)
# A comment or docstring that begins so has its subject somewhere else.
NO_SUBJECT = r"(Of|Those|It|Its|They|Theirs|As|And|Also|Else|The same|What)\b"
# Folders that begin the name of a file, and names that belong to others or are examples.
FOLDERS = "bench|cluster|configs|examples|fpga|include|launch|mpi|packaging|python|src|tests"
OF_OTHERS = {
    *("--config_file", "--local-dir", "--test-dir", "examples/accelerate/fsdp2_config.yaml"),
    *("cluster/mine/site.toml", "xrt_calls.hpp", "engine_test.cpp"),
    *("fpga/model", "tests/fpga/check_kernels.py"),  # of an older commit
}
HEAD = """# Source index

What each source does, and who calls it, in the words of its own first comment. [architecture.md](architecture.md) tells
how they work together. `tests/architecture/check_docs.py . --write` makes this page; a test fails if it is stale.
"""

root = pathlib.Path(sys.argv[1])
faults = []


def tracked(*patterns):
    files = subprocess.run(["git", "-C", root, "ls-files", "-z", *patterns], capture_output=True, text=True, check=True)
    return [name for name in files.stdout.split("\0") if name and (root / name).is_file()]


def first_comment(name):
    """The first paragraph of the comment or docstring that a source begins with; empty if it begins otherwise."""
    text = (root / name).read_text()
    if name.endswith(".py"):
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = re.sub(r"^//+ ?", "", re.match(r"(?://.*\n)*", text)[0], flags=re.MULTILINE)
    return " ".join(text.strip().split("\n\n")[0].split())


def sentences(text):
    return re.split(r"(?<=[\w)`]{2}\.) (?=[A-Za-z`])", text)


def entry(names):
    """The line of the index for the files of one name: what the header says, and who calls its sources."""
    files = sorted(names, key=lambda name: not name.endswith(HEADERS))
    said = sentences(first_comment(files[0]))
    callers = [
        one
        for name in files
        for one in sentences(first_comment(name))
        if re.match(r"(Called|Used|Chosen) |\S+ chooses ", one)
    ]
    stem, parts = pathlib.Path(files[0]), [f"`{pathlib.Path(name).suffix}`" for name in files[1:]]
    text = " ".join(dict.fromkeys([said[0], *callers])).removesuffix(":")
    # Words such as list[int] and <b> are no markup.
    return f"* `{stem.name}`{', ' if parts else ''}{', '.join(parts)}: " + re.sub(r"([\[\]<>*])", r"\\\1", text)


def index():
    folders = {}
    for name in tracked(*INDEXED):
        path = pathlib.Path(name)
        if path.suffix in HEADERS + SOURCES:
            folders.setdefault(str(path.parent), {}).setdefault(path.stem, []).append(name)
        elif path.suffix == ".py" and path.name != "__main__.py":
            folders.setdefault(str(path.parent), {}).setdefault(path.name, []).append(name)
    lines = [HEAD]
    for folder in sorted(folders):
        lines.append(f"## {folder}")
        for stem in sorted(folders[folder]):
            names = folders[folder][stem]
            faults.extend(
                f"{name} does not begin with a comment that says what it does and who calls it."
                for name in names
                if not first_comment(name)
                or (name.endswith((".cpp", ".py")) and not CALLER.search(first_comment(name)))
                and not name.endswith("__init__.py")
            )
            lines += textwrap.wrap(
                entry(names), 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        lines.append("")
    return "\n".join(lines)


def check_index(writes):
    page = root / "docs/source-index.md"
    text = index()
    if writes:
        page.write_text(text)
    if not page.is_file() or page.read_text() != text:
        faults.append("docs/source-index.md is stale: call tests/architecture/check_docs.py . --write.")
    return text.count("\n* ")


def exists(name, files):
    """Whether a name in a document or comment is that of a file or folder: its whole path, its end, or its stem."""
    if "/" not in name:
        return name in files["names"]
    return name in files["paths"] or name in files["stems"] or any(path.endswith(f"/{name}") for path in files["paths"])


def check_named_files():
    """Looks for the files, options and keys that documents name in backquotes, and for the sources that comments name.
    Names in capitals stand for others. Returns the number of the documents' names."""
    paths = set(tracked())
    sources = [name for name in paths if not name.endswith(".md") and not name.startswith("docs/")]
    files = {
        "paths": paths | {str(folder) for path in paths for folder in pathlib.Path(path).parents},
        "names": {pathlib.Path(path).name for path in paths},
        "stems": {path.rsplit(".", 1)[0] for path in paths},
    }
    texts = {name: (root / name).read_text(errors="replace") for name in sources}
    code = "\n".join(texts.values())
    keys = set(re.findall(r"^\| `(\w+\.[\w.]+)`", (root / "docs/configuration.md").read_text(), re.MULTILINE))
    sections = {key.split(".")[0] for key in keys}
    found = 0
    for document in tracked("*.md", ":!CHANGELOG.md", ":!docs/source-index.md"):
        text = (root / document).read_text()
        for quoted in re.finditer(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)):
            words = quoted[1]
            missing = [
                name
                for name in re.findall(
                    rf"(?<![\w/.$-])(?:(?:{FOLDERS})/[\w./-]*\w|\w+(?:\.[ch]pp|\.cuh?|_test\.py)\b)", words
                )
                if not re.search("[A-Z]{3}", name) and not exists(name, files)
            ]
            missing += [
                option
                for option in re.findall(r"(?<![\w-])--[a-z][\w-]+", words)
                if option not in code and option not in OF_OTHERS and option[2:].replace("-", "_") not in code
            ]
            missing += [
                key
                for key in re.findall(r"(?<![\w./-])([a-z_]+\.[a-z_]+)(?![\w(./])", words)
                if key.split(".")[0] in sections
                and not any(one == key or one.startswith(f"{key}.") for one in keys)
                and key.split(".")[1] not in texts.get(f"tests/{key.split('.')[0]}/CMakeLists.txt", "")
                and not key.endswith((".py", ".toml", ".json", ".cfg", ".safetensors"))
            ]
            found += 1
            faults.extend(f"{document} names {one}, which is not there." for one in missing if one not in OF_OTHERS)
    for name, text in texts.items():
        for line in text.splitlines() if name.endswith((".py", ".cu", ".cuh", *HEADERS, *SOURCES)) else ():
            comment = re.match(r"\s*(?://|# )(.*)|.*? // (.*)", line)
            named = re.findall(r"(?<![\w/.{*-])[\w/-]+\.(?:cpp|hpp|cuh?|md)\b", comment[0]) if comment else []
            faults.extend(
                f"{name} names {one}, which is not there."
                for one in named
                if not exists(one, files) and one not in OF_OTHERS
            )
    return found


def alternatives(pattern):
    """The patterns of a pattern with |, which a table writes as \\|, outside and within one pair of parentheses."""
    pattern = pattern.replace("\\|", "|").strip("'\"")
    for part in re.split(r"\|(?![^(]*\))", pattern):
        before, inner, after = re.match(r"([^(]*)\(?([^)]*)\)?(.*)", part).groups()
        yield from (before + one + after for one in inner.split("|"))


def check_tests(build):
    listed = subprocess.run(["ctest", "--test-dir", build, "-N"], capture_output=True, text=True, check=True).stdout
    tests = re.findall(r"Test +#\d+: (\S+)", listed)
    for document in tracked("*.md", ":!CHANGELOG.md"):
        for found in re.finditer(r"ctest\b[^`\n]*? -R ((?:'[^']+'|[^\s`])+)", (root / document).read_text()):
            faults.extend(
                f"{document} names the test {name}, which is not there."
                for name in alternatives(found[1])
                if not any(re.search(name, test) for test in tests) and name != "NAME"
            )


def anchors(path):
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links():
    documents = tracked("*.md")
    links = 0
    for document in (root / name for name in documents):
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
    if not links:
        faults.append("The documents have no links.")
    return links, len(documents)


def variables_read(name):
    """The environment variables of nearstep's own that a file reads: by $ in Bash, else in quotation marks."""
    suffix = pathlib.Path(name).suffix
    if suffix not in ("", ".py", *HEADERS, *SOURCES) or not (text := (root / name).read_text()):
        return set()
    is_bash = not suffix and "python" not in text.splitlines()[0]
    return set(re.findall(r"\$\{?(NEARSTEP_\w+)" if is_bash else r"""["'](NEARSTEP_\w+)["']""", text))


def check_variables():
    read = set().union(*map(variables_read, tracked(":!*.md")))
    listed = re.findall(r"^\| `(NEARSTEP_\w+)` \|", (root / "docs/environment.md").read_text(), re.MULTILINE)
    faults.extend(
        f"{name} is read, but not in docs/environment.md: make it an argument." for name in sorted(read - set(listed))
    )
    faults.extend(f"docs/environment.md has {name}, which nothing reads." for name in sorted(set(listed) - read))
    if len(listed) > MOST_VARIABLES:
        faults.append(f"docs/environment.md has {len(listed)} variables, and {MOST_VARIABLES} are allowed.")
    return len(listed)


def check_columns():
    written = tracked(":!docs/results/data", ":!docs/figures")
    one_line = {".md": "|", ".cpp": "#pragma", ".hpp": "#pragma"}
    for name in written:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # no text
        whole = one_line.get(pathlib.Path(name).suffix)
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > 120 and not (whole and line.lstrip().startswith(whole)):
                faults.append(f"{name}:{number} has {len(line)} columns: wrap it at 120.")
    return len(written)


def check_cells():
    """A link counts as the words that a reader sees."""
    for page in FIRST_PAGES:
        for number, line in enumerate((root / page).read_text().splitlines(), 1):
            shown = re.sub(r"<!--.*?-->", "", re.sub(r"\]\([^)]*\)", "", line))
            for cell in shown.split("|") if line.startswith("|") else ():
                if len(cell.split()) > MOST_WORDS:
                    faults.append(f"{page}:{number} has a cell of {len(cell.split())} words: say it in {MOST_WORDS}.")


def check_lengths():
    for name in tracked():
        if pathlib.Path(name).suffix not in (".py", *HEADERS, *SOURCES):
            with open(root / name, "rb") as file:
                if file.read(2) != b"#!":
                    continue
        lines = len((root / name).read_bytes().splitlines())
        if lines > MOST_LINES:
            faults.append(f"{name} has {lines} lines, and {MOST_LINES} are allowed: split it.")


def check_comments():
    for name in tracked("*.cpp", "*.hpp", "*.cu", "*.cuh", "*.py"):
        if name.startswith("tests/") and not name.endswith(".py") and not first_comment(name):
            faults.append(f"{name} does not begin with a comment that says what it tests or does.")
        before, text = "", (root / name).read_text()
        beginnings = []
        for number, line in enumerate(text.splitlines(), 1):
            if (found := re.match(rf"\s*(?://|#)<? {NO_SUBJECT}", line)) and not before.startswith(("//", "#")):
                beginnings.append((number, found[1]))
            before = line.lstrip()
        for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
            said = ast.get_docstring(node) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) else None
            if found := re.match(NO_SUBJECT, said or ""):
                beginnings.append((node.body[0].lineno, found[1]))
        faults.extend(f'{name}:{number} begins with "{word}": say what it speaks of.' for number, word in beginnings)


entries = check_index("--write" in sys.argv[2:])
names = check_named_files()
links, documents = check_links()
variables = check_variables()
files = check_columns()
check_cells()
check_lengths()
check_comments()
if "--tests-of" in sys.argv:
    check_tests(sys.argv[sys.argv.index("--tests-of") + 1])
print(
    f"{variables} variables, {entries} entries of the index, {names} names, {links} links in "
    f"{documents} documents, {files} files within 120 columns"
)
print("\n".join(faults))
sys.exit(bool(faults))

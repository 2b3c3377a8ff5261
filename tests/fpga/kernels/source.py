"""Reads the kernels: clang's syntax tree, with the line of every node, and the pragmas, which clang ignores."""

import dataclasses
import json
import math
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = "fpga/kernel"
LOOPS = ("ForStmt", "WhileStmt", "CXXForRangeStmt")
FUNCTIONS = ("FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl")


@dataclasses.dataclass(frozen=True)
class Pragma:
    file: str
    line: int
    kind: str  # such as "pipeline"
    settings: tuple  # of the words behind it, "name=value" or "name"

    def get(self, name):
        """The value of a setting; None if it is absent."""
        return next((s.partition("=")[2] for s in self.settings if s.partition("=")[0] == name), None)

    def __str__(self):
        return f"{self.file}:{self.line}: #pragma HLS {' '.join((self.kind, *self.settings))}"


def read_pragmas(root=ROOT):
    found = []
    for path in sorted((root / KERNELS).glob("*.?pp")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.match(r"\s*#pragma HLS (\w+)(.*)", line):
                settings = re.sub(r"\s*=\s*", "=", match[2]).split()
                found.append(Pragma(path.name, number, match[1], tuple(settings)))
    return found


def inner_of(node):
    return [child for child in node.get("inner", []) if child]


class Tree:
    """The syntax tree of both kernels as Vitis HLS compiles them."""

    def __init__(self, clang, root=ROOT):
        self.decls = {}  # by id
        self.records = {}  # by name, with template arguments
        self.spans = {}  # by file: first line, last line and kind of each loop and function
        command = [clang, "-std=c++14", "-fno-exceptions", "-Wno-unknown-pragmas", "-D__SYNTHESIS__", "-fsyntax-only",
                   "-I", str(root / "tests/fpga/synthesis"), "-I", str(root), "-I", str(root / "src"),
                   "-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=nearstep",
                   str(root / "tests/fpga/synthesis/kernels.cpp")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        text = done.stdout
        decoder = json.JSONDecoder()
        at = 0
        while (at := text.find("{\n", at)) >= 0:
            document, at = decoder.raw_decode(text, at)
            self._place = ["", 0]
            self._resolve(document)
            self._collect(document)

    # clang writes file and line only where they differ from those of the location before.
    def _resolve(self, node):
        for value in node.values() if isinstance(node, dict) else node:
            if isinstance(value, dict) and "offset" in value:
                self._place = [value.get("file", self._place[0]), value.get("line", self._place[1])]
                value["file"], value["line"] = self._place
            elif isinstance(value, (dict, list)):
                self._resolve(value)

    def _collect(self, node):
        kind = node.get("kind", "")
        if kind.endswith("Decl") and "id" in node:
            known = self.decls.get(node["id"])
            if known is None or len(inner_of(node)) > len(inner_of(known)):
                self.decls[node["id"]] = node
        if kind in ("CXXRecordDecl", "ClassTemplateSpecializationDecl") and node.get("completeDefinition"):
            arguments = [str(c["value"]) for c in inner_of(node) if c["kind"] == "TemplateArgument" and "value" in c]
            name = node.get("name", "") + (f"<{', '.join(arguments)}>" if arguments else "")
            self.records[name] = node
        if kind in LOOPS or kind in FUNCTIONS:
            file, first, last = lines_of(node)
            self.spans.setdefault(file, set()).add((first, last, kind))
        for child in inner_of(node):
            self._collect(child)

    def owner(self, pragma):
        """The loop or function that a pragma is for, as its file and first line; None if it is in none."""
        around = [s for s in self.spans.get(pragma.file, ()) if s[0] <= pragma.line <= s[1] and
                  (s[2] in FUNCTIONS or pragma.get("variable") is None)]
        return (pragma.file, min(around, key=lambda s: s[1] - s[0])[0]) if around else None

    def fields(self, name):
        return [c for c in inner_of(self.records[name]) if c["kind"] == "FieldDecl"]

    def record_of(self, type_name):
        """The record's name in `records`; None if the type is no record of the kernels."""
        name = bare(type_name).split("::")[-1] if "<" not in type_name else bare(type_name)
        name = re.sub(r"^(\w+::)*", "", name)
        return name if name in self.records else None

    def bits(self, type_name):
        scalars = {"bool": 1, "char": 8, "int8_t": 8, "uint8_t": 8, "uint16_t": 16, "unsigned short": 16, "int": 32,
                   "unsigned int": 32, "int32_t": 32, "uint32_t": 32, "float": 32, "double": 64, "uint64_t": 64,
                   "unsigned long": 64, "long": 64, "int64_t": 64, "unsigned char": 8}
        element, dimensions = split_array(type_name)
        count = math.prod(dimensions)
        if (record := self.record_of(element)) is not None:
            return count * sum(self.bits(type_of(field)) for field in self.fields(record))
        name = re.sub(r"^(\w+::)*", "", bare(element))
        # Enumerations are kept in 32 bits where no type is given.
        return count * scalars.get(name, 32)


    def largest_array(self, type_name):
        """Bits of the largest array after the fields of an array's records have become arrays of their own."""
        element, dimensions = split_array(type_name)
        if (record := self.record_of(element)) is None:
            return self.bits(type_name)
        count = math.prod(dimensions)
        return max(count * self.bits(type_of(field)) for field in self.fields(record))


def bare(type_name):
    return re.sub(r"\b(const|struct|class|enum) ", "", type_name).replace("&", "").strip()


def split_array(type_name):
    """The element's type and the dimensions."""
    dimensions = [int(d) for d in re.findall(r"\[(\d+)\]", type_name)]
    return re.sub(r"\[\d+\]", "", type_name).strip(), dimensions


def type_of(node):
    kind = node.get("type", {})
    return kind.get("desugaredQualType", kind.get("qualType", ""))


def lines_of(node):
    begin, end = (node["range"][side] for side in ("begin", "end"))
    begin, end = (side.get("expansionLoc", side) for side in (begin, end))
    return pathlib.Path(begin["file"]).name if "file" in begin else "", begin.get("line", 0), end.get("line", 0)

"""Walks the kernels' statements and expressions from an entry on. loops.py adds the loops."""

import dataclasses

from source import LOOPS, inner_of, lines_of, split_array, type_of
from values import CYCLES, DEVICE_LOAD_CYCLES, LOAD_CYCLES, STORE_CYCLES, Value, join, latest, operate, symbol

REGISTER_BITS = 1024  # smaller arrays are registers or lookup tables
TRANSPARENT = ("ImplicitCastExpr", "ParenExpr", "ExprWithCleanups", "MaterializeTemporaryExpr", "CXXStaticCastExpr",
               "CXXFunctionalCastExpr", "CXXBindTemporaryExpr", "ConstantExpr", "SubstNonTypeTemplateParmExpr",
               "CXXDefaultInitExpr", "CXXDefaultArgExpr")


@dataclasses.dataclass
class Access:
    memory: tuple  # its path
    is_write: bool
    index: tuple  # of texts
    guards: tuple  # texts of the conditions around it
    value: Value  # read or written
    name: str  # of the memory's variable
    function: tuple  # file and line


@dataclasses.dataclass
class Memory:
    name: str
    function: str
    owner: tuple  # file and line of the function
    path: tuple
    element: str  # type
    dimensions: list
    is_stream: bool
    loops: int  # around the declaration
    calls: int  # around the declaration
    writers: set = dataclasses.field(default_factory=set)
    readers: set = dataclasses.field(default_factory=set)


class Walker:
    def __init__(self, tree, pragmas):
        self.tree = tree
        self.pragmas = {}  # by their owner, a function or loop
        for pragma in pragmas:
            self.pragmas.setdefault(tree.owner(pragma), []).append(pragma)
        self.memories = {}  # by path
        self.instances = {}  # memories by the calls around them and path
        self.places = {}  # of references and pointers, by id
        self.types = {}  # of memories and members, by path
        self.env = {}  # values by path
        self.controls = []  # the conditions of what runs now
        self.stack = []  # the loops around what runs now
        self.calls = []
        self.frames = []
        self.declared = [set()]  # ids, by loop
        self.dry = 0  # above 0, only what is written is of interest: all branches are taken

    def walk(self, entry):
        function = self.tree.decls[entry]
        for parameter in inner_of(function):
            if parameter["kind"] == "ParmVarDecl" and type_of(parameter).endswith("*"):
                self.places[parameter["id"]] = ("device", parameter["name"])
        self.frames.append({"function": function, "this": None, "returns": [], "controls": 0})
        self.run(inner_of(function)[-1])
        self.frames.pop()

    # --- Places ----------------------------------------------------------------------------------

    # A path of names; after the path of a memory, ("[]", index) and what is behind it belong to an access.
    def place(self, node):
        kind, inner = node["kind"], inner_of(node)
        if kind in TRANSPARENT:
            return self.place(inner[-1]) if inner else None
        if kind == "DeclRefExpr":
            name = node["referencedDecl"]["id"]
            self.types.setdefault(("v", name), type_of(node))
            return self.places.get(name, ("v", name))
        if kind == "CXXThisExpr":
            return self.frames[-1]["this"]
        if kind == "MemberExpr":
            base = self.place(inner[0])
            path = base and (*base, node["name"])
            if path:
                self.types[path] = type_of(node)
            return path
        if kind == "ArraySubscriptExpr":
            base = self.place(inner[0])
            return base and (*base, ("[]", self.value(inner[1])))
        return None

    def split(self, path):
        """The memory of a path and its index; None if the path names registers, and then their path."""
        for at, part in enumerate(path):
            if isinstance(part, tuple):
                array = path[:at]
                index = []
                while at < len(path) and isinstance(path[at], tuple):
                    index.append(path[at][1])
                    at += 1
                if array[0] == "device" or self.tree.largest_array(self.types.get(array, "int")) > REGISTER_BITS:
                    return array, index
                numbers = [i.number for i in index]
                here = (*array, *numbers) if None not in numbers else array
                return self.split((*here, *path[at:]))
        return None, path

    def read(self, path):
        array, index = self.split(path)
        if array is not None:
            return self.touch(array, index, None)
        index_delays = latest(*(p[1] for p in path if isinstance(p, tuple)))
        found = [v for p, v in self.env.items() if p[:len(index)] == index or index[:len(p)] == p]
        if not found:
            return Value(index_delays, "_".join(str(p) for p in ("p", *index)).replace("-", "_"))
        if index in self.env and len(found) == 1:
            return Value(latest(found[0], Value(index_delays)), found[0].text)
        value = join(*found)
        return Value(latest(value, Value(index_delays)), symbol())

    def write(self, path, value):
        array, index = self.split(path)
        if array is not None:
            return self.touch(array, index, value)
        parts = [p[1] for p in path if isinstance(p, tuple)]
        if parts and not all(isinstance(p.number, int) for p in parts):  # an unknown part of a register
            value = Value(latest(value, *parts, self.read(index)), symbol())
        for known in [p for p in self.env if len(p) > len(index) and p[:len(index)] == index]:
            del self.env[known]
        self.env[index] = value
        return value

    def touch(self, array, index, written):
        on_device = array[0] == "device"
        delays = Value(latest(*index, *self.controls))
        if written is None:
            value = Value(delays.delays, symbol()).later(DEVICE_LOAD_CYCLES if on_device else LOAD_CYCLES)
            if not on_device:
                value.delays[("memory", array)] = LOAD_CYCLES
        else:
            value = Value(latest(delays, written)).later(STORE_CYCLES)
        if self.stack and not self.dry:
            guards = tuple(c.text for c in self.controls)
            name = self.tree.decls.get(array[-1], {}).get("name", array[-1])
            self.stack[-1].accesses.append(Access(array, written is not None, tuple(i.text for i in index), guards, value,
                                                  name, lines_of(self.frames[-1]["function"])[:2]))
        return value

    # --- Expressions -----------------------------------------------------------------------------

    def value(self, node):
        kind, inner = node["kind"], inner_of(node)
        if kind in ("IntegerLiteral", "CXXBoolLiteralExpr"):
            return Value({}, str(int(node["value"])))
        if kind in ("ImplicitCastExpr", "CXXStaticCastExpr") and node["castKind"] in ("IntegralToFloating",
                                                                                     "FloatingToIntegral"):
            return Value(self.value(inner[0]).delays, symbol()).later(CYCLES["float", "*"])
        if kind in TRANSPARENT:
            return self.value(inner[-1]) if inner else Value({}, symbol())
        if kind == "DeclRefExpr":
            return self.named(node)
        if kind == "MemberExpr" and (member := self.tree.decls.get(node.get("referencedMemberDecl"))) is not None:
            if member["kind"] == "VarDecl":  # a static constant
                return self.value(inner_of(member)[0])
        if kind in ("MemberExpr", "ArraySubscriptExpr"):
            path = self.place(node)
            return self.read(path) if path else self.value(inner[0])
        if kind == "BinaryOperator" and node["opcode"] == "=":
            return self.write(self.place(inner[0]), self.value(inner[1]))
        if kind == "BinaryOperator":
            one = self.value(inner[0])
            if node["opcode"] in ("&&", "||"):
                self.controls.append(Value(one.delays, one.text if node["opcode"] == "&&" else f"(not {one.text})"))
                other = self.value(inner[1])
                self.controls.pop()
            else:
                other = self.value(inner[1])
            return operate(node["opcode"], type_of(inner[0]), one, other)
        if kind == "CompoundAssignOperator":
            path, term = self.place(inner[0]), self.value(inner[1])
            return self.write(path, operate(node["opcode"][:-1], type_of(node), self.read(path), term))
        if kind == "UnaryOperator":
            return self.unary(node)
        if kind == "ConditionalOperator":
            return self.conditional(inner)
        if kind in ("CallExpr", "CXXMemberCallExpr", "CXXOperatorCallExpr"):
            return self.call(node)
        if kind in ("InitListExpr", "CXXConstructExpr", "ImplicitValueInitExpr", "CXXTemporaryObjectExpr"):
            values = [self.value(child) for child in inner]
            return join(*values) if values else Value({}, "0" if kind == "ImplicitValueInitExpr" else symbol())
        if kind in ("FloatingLiteral", "UnaryExprOrTypeTraitExpr", "CXXScalarValueInitExpr"):
            return Value({}, symbol())
        raise NotImplementedError(f"{kind} in {self.frames[-1]['function'].get('name')}")

    def named(self, node):
        declared = self.tree.decls.get(node["referencedDecl"]["id"], node["referencedDecl"])
        if declared["kind"] == "EnumConstantDecl":
            return Value({}, f"e_{declared['name']}")
        path = self.place(node)
        if path == ("v", declared["id"]) and path not in self.env and declared.get("constexpr") and inner_of(declared):
            return self.value(inner_of(declared)[0])
        return self.read(path)

    def unary(self, node):
        inner = inner_of(node)
        operand = self.value(inner[0])
        if node["opcode"] in ("++", "--"):
            return self.write(self.place(inner[0]), operate(node["opcode"][0], "int", operand, Value({}, "1")))
        if node["opcode"] == "!":
            number = operand.number
            return Value(operand.delays, f"(not {operand.text})" if number is None else str(int(not number)))
        return operate("-", "int", Value({}, "0"), operand) if node["opcode"] == "-" else Value(operand.delays, symbol())

    def conditional(self, inner):
        condition = self.value(inner[0])
        if condition.number is not None and not self.dry:
            return self.value(inner[1 if condition.number else 2])
        values = []
        for child, text in ((inner[1], condition.text), (inner[2], f"(not {condition.text})")):
            self.controls.append(Value(condition.delays, text))
            values.append(self.value(child))
            self.controls.pop()
        return Value(latest(condition, *values), symbol())

    def call(self, node):
        callee, *arguments = inner_of(node)
        while callee["kind"] in TRANSPARENT:
            callee = inner_of(callee)[0]
        if callee["kind"] == "MemberExpr":
            path = self.place(inner_of(callee)[0])
            if callee["name"] in ("read", "write") and path in self.memories and self.memories[path].is_stream:
                return self.pass_stream(callee["name"], self.memories[path], arguments)
            return self.enter(self.tree.decls[callee["referencedMemberDecl"]], arguments, path, node)
        name = callee["referencedDecl"]["name"]
        if name == "operator=":
            return self.write(self.place(arguments[0]), self.value(arguments[1]))
        if name in ("bits_of", "float_of", "bits_of_double"):
            return Value(self.value(arguments[0]).delays, symbol())
        if "sqrt" in name:
            return Value(self.value(arguments[0]).delays, symbol()).later(CYCLES["float", "sqrt"])
        declared = self.tree.decls.get(callee["referencedDecl"]["id"])
        if declared is None or inner_of(declared)[-1:][0]["kind"] != "CompoundStmt":
            raise NotImplementedError(f"a call of {name}")
        return self.enter(declared, arguments, None, node)

    def pass_stream(self, what, stream, arguments):
        process = self.calls[stream.calls] if len(self.calls) > stream.calls else None
        (stream.writers if what == "write" else stream.readers).add(process)
        for argument in arguments:
            self.value(argument)
        return Value({}, symbol())

    def enter(self, function, arguments, this, node):
        parameters = [c for c in inner_of(function) if c["kind"] == "ParmVarDecl"]
        bound = []
        for parameter, argument in zip(parameters, arguments):
            path = self.place(argument) if type_of(parameter)[-1] in "&*" else None
            bound.append((parameter["id"], path, None if path else self.value(argument)))
        for name, path, value in bound:
            self.places.pop(name, None)
            self.declared[-1].add(name)
            if path:
                self.places[name] = path
            else:
                self.write(("v", name), value)
        frame = {"function": function, "this": this, "returns": [], "controls": len(self.controls)}
        self.frames.append(frame)
        self.calls.append(node["id"])
        self.run(inner_of(function)[-1])
        self.calls.pop()
        del self.controls[frame["controls"]:]
        self.frames.pop()
        return join(*frame["returns"]) if frame["returns"] else Value({}, symbol())

    # --- Statements ------------------------------------------------------------------------------

    def run(self, node):
        kind, inner = node["kind"], inner_of(node)
        if kind == "CompoundStmt":
            for child in inner:
                self.run(child)
        elif kind == "DeclStmt":
            for child in inner:
                self.declare(child)
        elif kind == "IfStmt":
            self.choose(self.value(inner[0]), inner[1:])
        elif kind == "SwitchStmt":
            condition = self.value(inner[0])
            cases = []
            for child in inner_of(inner[1]):
                if child["kind"] in ("CaseStmt", "DefaultStmt"):
                    cases.append([])
                while child["kind"] in ("CaseStmt", "DefaultStmt"):
                    child = inner_of(child)[-1]
                cases[-1].append(child)
            for case in cases:
                self.choose(Value(condition.delays, symbol()), [{"kind": "CompoundStmt", "inner": case}])
        elif kind == "ReturnStmt":
            frame = self.frames[-1]
            if inner:
                value = self.value(inner[0])
                delays = latest(value, *self.controls[frame["controls"]:])
                frame["returns"].append(Value(delays, value.text))
            frame["has_returned"] = True
        elif kind in LOOPS:
            self.loop(node)
        elif kind not in ("NullStmt", "BreakStmt"):
            self.value(node)

    def choose(self, condition, branches):
        if condition.number is not None and not self.dry:
            for branch in branches[:1] if condition.number else branches[1:2]:
                self.run(branch)
            return
        before, ends = dict(self.env), []
        texts = (condition.text, f"(not {condition.text})")
        for text, branch in zip(texts, [*branches, None][:2]):
            self.env = dict(before)
            self.controls.append(Value(condition.delays, text))
            level = len(self.controls)
            self.frames[-1]["has_returned"] = False
            if branch is not None:
                self.run(branch)
            del self.controls[level - 1:]
            ends.append((self.env, self.frames[-1]["has_returned"]))
        kept = [env for env, has_returned in ends if not has_returned] or [before]
        self.frames[-1]["has_returned"] = all(has_returned for _, has_returned in ends)
        if len(kept) < 2 and any(has_returned for _, has_returned in ends):
            # What follows in this function depends on the condition.
            self.controls.append(Value(condition.delays, texts[0 if ends[1][1] else 1]))
            self.env = kept[0]
            return
        self.env = self.merge(condition, before, kept)

    def merge(self, condition, before, ends):
        merged = dict(before)
        for path in {p for env in ends for p in env if env[p] is not before.get(p)}:
            values = []
            for env in ends:
                self.env = env
                values.append(env[path] if path in env else self.read(path))
            merged[path] = Value(latest(condition, *values), symbol())
        return merged

    def declare(self, node):
        if node["kind"] != "VarDecl":
            return
        path, inner, type_name = ("v", node["id"]), inner_of(node), type_of(node)
        self.places.pop(node["id"], None)
        self.declared[-1].add(node["id"])
        if type_name.endswith("&") and (target := self.place(inner[0])) is not None:
            self.places[node["id"]] = target
            return
        for known in [p for p in self.env if p[:2] == path]:
            del self.env[known]
        self.types[path] = type_name
        self.declare_memories(node, path, type_name)
        if inner and not type_name.startswith("hls::stream"):
            self.env[path] = self.value(inner[-1])

    def declare_memories(self, node, path, type_name, name=""):
        name = name or node["name"]
        if type_name.startswith("hls::stream<"):
            element, depth = type_name[len("hls::stream<"):-1].rsplit(", ", 1)
            self.add_memory(node, path, name, element, [int(depth)], True)
            return
        element, dimensions = split_array(type_name)
        if dimensions and not type_name.startswith("const "):
            if self.tree.largest_array(type_name) > REGISTER_BITS:
                self.add_memory(node, path, name, element, dimensions, False)
        elif (record := self.tree.record_of(element)) is not None:
            for field in self.tree.fields(record):
                self.declare_memories(node, (*path, field["name"]), type_of(field), f"{name}.{field['name']}")

    def add_memory(self, node, path, name, element, dimensions, is_stream):
        self.types[path] = element + "".join(f"[{d}]" for d in dimensions)
        function = self.frames[-1]["function"]
        owner = lines_of(function)[:2]
        key = (*self.calls, path)
        if key not in self.instances:
            self.instances[key] = Memory(name, function["name"], owner, path, element, dimensions, is_stream,
                                         len(self.stack), len(self.calls))
        self.memories[path] = self.instances[key]

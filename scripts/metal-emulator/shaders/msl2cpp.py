#!/usr/bin/env python3
"""Turns one .metal source into C++17 for shim.h:  msl2cpp.py SOURCE.metal OUT.cpp

`$EMU_CXX` is the compiler. clang's preprocessor expands the macros (kernels are
instantiated by macros), then the text is rewritten:

- attributes of kernel parameters become a table per kernel: which buffer, which piece of threadgroup memory or which
  index of a thread each parameter is; `Make` of shim.h reads the parameters' types from the C++ signature itself;
- function constants become variables that the program sets before each dispatch, or reports where they are used unset;
- instantiations with a host name become entries of the registration table;
- variables of a threadgroup become `static thread_local`, announced to the runtime: one threadgroup runs at a time;
- floating-point literals are float, as in Metal, where C++ would have double.

Address spaces are empty macros. Overloads that differ in them alone would be the same function twice: see `TWICE`.
"""

import os
import re
import subprocess
import sys

COMPILER = os.environ["EMU_CXX"].split()
# What a parameter's attribute asks for, by the names of shim.h.
THREAD = {
    "thread_position_in_grid": "B_TPIG",
    "thread_position_in_threadgroup": "B_TPTG",
    "threadgroup_position_in_grid": "B_TGPIG",
    "threads_per_threadgroup": "B_TPTGDIM",
    "threadgroups_per_grid": "B_TGPG",
    "threads_per_grid": "B_TPG",
    "thread_index_in_threadgroup": "B_INDEX_TG",
    "thread_index_in_simdgroup": "B_LANE",
    "simdgroup_index_in_threadgroup": "B_SG",
    "simdgroups_per_threadgroup": "B_SGS",
    "threads_per_simdgroup": "B_SGW",
}
# Overloads that differ in an address space alone, of each source: how they begin, how often they must be found. They end
# at the first line that closes a brace.
TWICE = {
    "scaled_dot_product_attention.metal": [
        (r"template <typename T>\nstruct pointer_element<device ?T\*> \{", r"\n\};\n", 1),
        (r"template <typename T>\nstruct pointer_element< ?T\*> \{", r"\n\};\n", 1),
    ],
    "mlx_gemm.metal": [
        (
            r"template <typename stride_t>\nMETAL_FUNC stride_t elem_to_loc\(\n    (?:uint|stride_t) elem,"
            r"\n    device const int\* shape,",
            r"\n\}\n",
            2,
        ),
    ],
}
# Sources in which threads leave before others meet at a simdgroup operation: of a product, the rows after its end.
LEAVES = {"gemv.metal"}


def closing(text, at, opens="(", closes=")"):
    """Where the bracket at or behind `at` is closed."""
    depth = 0
    while True:
        if text[at] == opens:
            depth += 1
        elif text[at] == closes:
            depth -= 1
            if depth == 0:
                return at
        at += 1


def parameters(text):
    """Splits at the commas outside of brackets."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += char in "(<[{"
        depth -= char in ")>]}"
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return parts + [part] if part.strip() else parts


def expanded(source, out):
    """The source without its system headers and pragmas, macros expanded."""
    with open(source) as file:
        text = re.sub(r"^\s*#\s*include\s*<.*$", "", file.read(), flags=re.M)
    before = out + ".in.cpp"
    with open(before, "w") as file:
        file.write(text)
    defines = ["-undef", "-D__METAL__=1", "-D__METAL_VERSION__=310", "-D__HAVE_BFLOAT__=1"]
    command = COMPILER + ["-E", "-P", "-x", "c++", "-std=c++17"] + defines + [before]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"using namespace metal;", "", text)
    text = re.sub(r"^\s*#pragma (METAL|unroll).*$", "", text, flags=re.M)
    return re.sub(r"#pragma clang loop.*$", "", text, flags=re.M)


def function_constants(text):
    """Each becomes a variable, registered under its index; constants computed of them are computed where they are used."""
    names = []

    def variable(found):
        kind, name, index = found[1], found[2], found[3]
        names.append(name)
        return f'static emu::Constant<{kind}> {name}{{"{name}", {index}}};'

    def computed(found):
        kind, name, value = found[1], found[2], found[3]
        if not any(re.search(rf"\b{other}\b", value) for other in names):
            return found[0]
        names.append(name)
        return f"static const struct {{ operator {kind}() const {{ return {value}; }} }} {name}{{}};"

    text = re.sub(r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]\s*;", variable, text)
    return re.sub(r"\bconstant\s+(\w+)\s+(\w+)\s*=\s*([^;{}]*);", computed, text)


def one_constructor(text):
    """Of constructors that are defaulted once for every address space one is enough."""
    space = r"(\)\s*)(thread|threadgroup|device|constant)(\s*=\s*default\s*;)"
    text = re.sub(space, r"\1@SPACE@\3", text)
    one = r"(?:constexpr\s+)?[\w<>]+\(\)\s*(?:@SPACE@)?\s*=\s*default\s*;\s*"
    return re.sub(rf"({one})(?:{one})+", r"\1", text).replace("@SPACE@", "")


def instantiations(text):
    """Takes `template [[host_name("...")]] [[kernel]] ... f<...>...;` out of the text: pairs of host name and function."""
    begins = re.compile(r"template\s*\[\[\s*host_name\s*\(")
    found, rest, at = [], [], 0
    while begin := begins.search(text, at):
        rest.append(text[at : begin.start()])
        end = closing(text, begin.end() - 1)
        name = "".join(re.findall(r'"([^"]*)"', text[begin.end() : end]))
        semicolon, depth = end, 0
        while text[semicolon] != ";" or depth > 0:
            depth += text[semicolon] in "({["
            depth -= text[semicolon] in ")}]" and depth > 0
            semicolon += 1
        body = text[end + 1 : semicolon]
        if body.lstrip().startswith("]]"):
            body = body[body.index("]]") + 2 :]
        body = re.sub(r"\[\[\s*kernel\s*\]\]|\bkernel\b", "", body).strip()
        if body.startswith("decltype"):
            function = body[closing(body, body.index("(")) + 1 :].strip()
        elif body.startswith("void"):
            function = body[4:].strip()
            function = function[: closing(function, function.index("<"), "<", ">") + 1]
        else:
            function = body.split(None, 1)[1].strip()
        found.append((name, function))
        at = semicolon + 1
    return "".join(rest + [text[at:]]), found


def binding(attributes, explicit, unnumbered):
    """What a parameter is bound to, and the buffers counted so far among those without a number."""
    if buffer := re.search(r"\bbuffer\((\d+)\)", attributes):
        return ("B_BUFFER", int(buffer[1])), unnumbered
    if memory := re.search(r"\bthreadgroup\((\d+)\)", attributes):
        return ("B_TGMEM", int(memory[1])), unnumbered
    for name, kind in THREAD.items():
        if re.search(rf"\b{name}\b", attributes):
            return (kind, 0), unnumbered
    while unnumbered in explicit:
        unnumbered += 1
    return ("B_BUFFER", unnumbered), unnumbered + 1


def kernels(text):
    """Definitions without attributes; the bindings of each function; host name and function of those that are no template."""
    begins = re.compile(
        r'(\[\[\s*host_name\s*\(\s*"([^"]*)"\s*\)\s*\]\]\s*)?'
        r"(\[\[\s*kernel[^;{]*?\]\]|\bkernel\b)\s+(\[\[[^;{]*?\]\]\s*)?void\s+(\w+)\s*\("
    )
    rest, bindings, plain, at = [], {}, [], 0
    while begin := begins.search(text, at):
        before = text[at : begin.start()]
        end = closing(text, begin.end() - 1)
        inside = text[begin.end() : end]
        explicit = {int(index) for index in re.findall(r"\bbuffer\((\d+)\)", inside)}
        bound, clean, unnumbered = [], [], 0
        for parameter in parameters(inside):
            attributes = " ".join(re.findall(r"\[\[(.*?)\]\]", parameter, flags=re.S))
            clean.append(re.sub(r"\[\[.*?\]\]", "", parameter, flags=re.S).strip())
            one, unnumbered = binding(attributes, explicit, unnumbered)
            switch = re.search(r"\bfunction_constant\((\w+)\)", attributes)
            bound.append(one + (f"[] {{ return bool({switch[1]}); }}" if switch else "nullptr",))
        name = begin[5]
        bindings[name] = bound
        rest += [before, f'void {name}({", ".join(clean)})']
        if not re.search(r"template\s*<[^;{}]*>\s*$", before):
            plain.append((begin[2] or name, name))
        at = end + 1
    return re.sub(r"\[\[.*?\]\]", "", "".join(rest + [text[at:]]), flags=re.S), bindings, plain


def literals_and_casts(text):
    number = r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])"
    text = re.sub(number, r"\1f", text)
    text = re.sub(r"(?<![\w.])(\d+\.\d*|\.\d+)h\b", r"half(\1f)", text)
    return re.sub(r"\bstatic_cast\s*<", "emu_cast<", text)


def threadgroup_variables(text):
    variable = r"\bthreadgroup\s+((?:typename\s+)?[\w:<>]+\s+(\w+)\s*(?:\[[^;]*?\])*\s*;)"
    text = re.sub(variable, r"static thread_local \1 emu::threadgroup_variable(&\2, sizeof(\2));", text)
    left = [v for v in re.findall(r"\bthreadgroup\s+[^;{}()]*;", text) if "*" not in v and "&" not in v]
    if left:
        sys.exit(f"variables of a threadgroup that are not understood: {left[:5]}")
    return re.sub(r"\bthreadgroup\b(?!_)", "", text)


def main(source, out):
    name = os.path.basename(source)
    text, instances = instantiations(one_constructor(function_constants(expanded(source, out))))
    text, bindings, plain = kernels(text)
    text = threadgroup_variables(literals_and_casts(text))
    for begin, end, times in TWICE.get(name, []):
        text, count = re.subn(begin + ".*?" + end, "", text, flags=re.S)
        if count != times:
            sys.exit(f"{name}: {begin!r} is there {count} times, not {times}; adapt TWICE")
    with open(out, "w") as file:
        file.write('#include "shim.h"\nusing namespace metal;\n' + text + "\n")
        for function, bound in bindings.items():
            table = ", ".join(f"{{emu::{kind}, {index}, {switch}}}" for kind, index, switch in bound)
            file.write(f"constexpr emu::Bind emu_b_{function}[] = {{{table}}};\n")
        if name in LEAVES:
            file.write("static const bool emu_leaves = emu::threads_may_leave();\n")
        for index, (host, function) in enumerate(plain + instances):
            table = "emu_b_" + re.match(r"\w+", function)[0]
            file.write(f'static emu::Reg emu_r{index}("{host}", {table}, emu::Make<&{function}, {table}>{{}});\n')


main(sys.argv[1], sys.argv[2])

#!/usr/bin/env python3
"""Checks the borders between the modules under src/; prints each breach as file:line: what, and exits 1 if there is one.

  tools/layers [--root DIR]

1. An include "module/file.h" names an existing file, and points upward in ORDER (text sees no tensors), to a module
   that the includer's CMakeLists.txt reaches by DEPS.
2. The backends know nothing of each other: the reference is the meaning of an operation, not a part of it.
3. No environment variable is read outside cli/.
4. No architecture is named under backend/: a kernel says what it computes, not for whom.
5. No device conditional outside backend/.
"""
import argparse
import pathlib
import re
import sys

# Top to bottom as the data flows: a module may use what stands before it, never what stands behind.
ORDER = ["base", "tensor", "format", "quant", "sample", "backend", "state", "model", "text", "engine", "cli"]
# Modules that may use less than their place allows.
ONLY = {"text": {"base", "format"}}

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
GETENV = re.compile(r"\b(secure_)?getenv\b|\benviron\b")
DEVICE = re.compile(r"\bTANDEM_CUDA\b|\b__CUDA\w*|\b__NVCC__\b")
ARCHITECTURE = re.compile(r"qwen|llama|gemma|mistral|mixtral|deepseek|dflash", re.IGNORECASE)
TD_MODULE = re.compile(r"\btd_module\s*\(\s*(\S+)([^)]*)\)")


def declared_deps(src):
    """module (top-level folder) -> the modules that its td_module() calls reach through DEPS."""
    direct = {}
    for path in src.rglob("CMakeLists.txt"):
        for name, body in TD_MODULE.findall(path.read_text()):
            deps = re.search(r"\bDEPS\b((?:\s+(?!SOURCES\b|LIBS\b)[^\s)]+)*)", body)
            names = {d.split("/")[0] for d in deps.group(1).split()} if deps else set()
            direct.setdefault(name.split("/")[0], set()).update(names)
    reached = {}
    for module in direct:
        todo, seen = [module], set()
        while todo:
            for dep in direct.get(todo.pop(), ()):
                if dep not in seen:
                    seen.add(dep)
                    todo.append(dep)
        reached[module] = seen
    return reached


def check_include(src, module, path, target, reached):
    other = target.split("/")[0]
    if not (src / target).is_file():
        return f'"{target}" is not a file under src/; includes are "module/file.h"'
    if module == other:
        here, there = path.relative_to(src).parts, pathlib.PurePath(target).parts
        if module == "backend" and len(here) > 2 and len(there) > 2 and here[1] != there[1]:
            return f"backend/{here[1]} may not use backend/{there[1]}"
        return None
    if other not in ORDER:
        return f'module "{other}" is not in the list of modules (ORDER in tools/layers)'
    allowed = ONLY.get(module, set(ORDER[: ORDER.index(module)]))
    if other not in allowed:
        return f"{module}/ may not use {other}/ (it may use: {', '.join(m for m in ORDER if m in allowed) or 'nothing'})"
    if other not in reached.get(module, set()):
        return f"{module}/ uses {other}/ without naming it: add it to DEPS in src/{module}/CMakeLists.txt"
    return None


def check_file(src, path, reached):
    module = path.relative_to(src).parts[0]
    if module not in ORDER:
        yield 1, f'module "{module}" is not in the list of modules (ORDER in tools/layers)'
        return
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if include := INCLUDE.match(line):
            if breach := check_include(src, module, path, include.group(1), reached):
                yield number, breach
        if module != "cli" and GETENV.search(line):
            yield number, "environment variables are read in cli/ only; pass an option"
        if module != "backend" and (found := DEVICE.search(line)):
            yield number, f"{found.group()} belongs under backend/"
        if module == "backend" and (found := ARCHITECTURE.search(line)):
            yield number, f'backend/ names an architecture ("{found.group()}"); say what is computed instead'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    src = parser.parse_args().root / "src"
    files = sorted(p for p in src.rglob("*") if p.suffix in SUFFIXES)
    reached = declared_deps(src)
    breaches = [f"{path.relative_to(src.parent)}:{n}: {what}" for path in files for n, what in check_file(src, path, reached)]
    for breach in breaches:
        print(breach)
    if not files:
        print(f"layers: no sources under {src}")
    if breaches or not files:
        sys.exit(1)
    print(f"layers: {len(files)} files, every include points upward")


if __name__ == "__main__":
    main()

"""The house rules that no linter knows (layers are import-linter's): sizes, names, where the environment is read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.settings import Settings

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "broker", "predictor", "workers")
FOLDERS = (*PACKAGES, "tests", "benchmarks")
MAX_FILE_LINES = 300
MAX_LUA_LINES = 80
MAX_FUNCTION_LINES = 40
MAX_NESTING = 3
MAX_PARAMETERS = 5
MAX_POSITIONAL = 2
FORBIDDEN_NAMES = {"utils", "common", "helpers", "manager", "queue", "types", "logging"}
READS_ENVIRONMENT = {"broker/settings.py"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def functions(*folders: str) -> Iterator[tuple[str, Function]]:
    for path in python_files(*folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def depth(node: ast.AST) -> int:
    """How deep blocks lie in each other. An `elif` is no deeper than its `if`; an inner function starts afresh."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        chained = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        opens = isinstance(child, BLOCKS) and not chained
        deepest = max(deepest, depth(child) + opens)
    return deepest


def decorators(function: Function) -> set[str]:
    calls = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def given(function: Function) -> tuple[list[str], list[str]]:
    """Positional and keyword-only parameters, without the instance or class."""
    positional = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if positional and positional[0] in ("self", "cls"):
        positional = positional[1:]
    return positional, [a.arg for a in function.args.kwonlyargs]


def test_files_stay_under_the_cap() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines()) for p in python_files(*FOLDERS)}
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_lua_scripts_stay_under_the_cap() -> None:
    sizes = {p.name: len(p.read_text("utf-8").splitlines()) for p in (ROOT / "broker" / "lua").glob("*.lua")}
    assert {name: size for name, size in sizes.items() if size > MAX_LUA_LINES} == {}


def test_functions_stay_under_the_caps_of_length_and_nesting() -> None:
    found = []
    for where, function in functions(*FOLDERS):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            found.append(f"{where}: {lines} lines")
        if (nesting := depth(function)) > MAX_NESTING:
            found.append(f"{where}: nesting {nesting}")
    assert found == []


def test_functions_take_few_parameters_and_two_by_position() -> None:
    """A command's parameters are its options; a special method's are Python's; the test runner fills in a test's."""
    found = []
    for where, function in functions(*PACKAGES):
        if decorators(function) & {"command", "callback"}:
            continue
        positional, named = given(function)
        if len(positional) + len(named) > MAX_PARAMETERS:
            found.append(f"{where}: {len(positional) + len(named)} parameters")
        special = function.name.startswith("__") and function.name != "__init__"
        if len(positional) > MAX_POSITIONAL and not special:
            found.append(f"{where}: by position {positional}")
    assert found == []


def test_no_module_has_a_name_that_says_nothing_or_hides_the_standard_library() -> None:
    named = [
        p for p in python_files(*PACKAGES) if p.stem in FORBIDDEN_NAMES or p.parent.name in FORBIDDEN_NAMES
    ]
    assert named == []


def test_only_the_settings_read_the_environment() -> None:
    reads = {
        str(path.relative_to(ROOT))
        for path in python_files(*PACKAGES)
        if re.search(r"\bos\.(environ|getenv)\b|from os import .*environ", path.read_text("utf-8"))
    }
    assert reads <= READS_ENVIRONMENT


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_by_hash_and_name_no_host_and_no_path(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]
    assert pins
    assert all(re.match(r"[a-z0-9._-]+(\[[a-z0-9,-]+\])?==", pin) and pin.endswith("\\") for pin in pins)
    assert not [line for line in lines if "://" in line or "--index" in line or "find-links" in line]


def test_depth_counts_an_elif_chain_once_and_an_inner_function_apart() -> None:
    code = """
def f():
    if a:
        pass
    elif b:
        for x in y:
            with z:
                pass
    def g():
        while True:
            pass
"""
    assert depth(ast.parse(code).body[0]) == 3


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert [name for name in Settings.model_fields if f"`HEADWAY_{name.upper()}`" not in text] == []

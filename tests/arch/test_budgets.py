"""Sizes stay readable: 300 lines a file, 40 a function body (generated code aside)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("exspec", "coordinator", "draft_worker", "target_worker")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40

FILES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if ROOT / "exspec" / "v1" not in path.parents
)


def test_there_is_something_to_measure():
    assert {path.relative_to(ROOT).parts[0] for path in FILES} == set(PACKAGES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes(path):
    source = path.read_text()
    num_lines = len(source.splitlines())
    assert num_lines <= MAX_FILE_LINES, f"{num_lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Signatures are not counted: a command's options are its parameters.
            assert node.end_lineno is not None
            length = node.end_lineno - node.body[0].lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_may_live_in_it(path):
    assert ast.get_docstring(ast.parse(path.read_text()))

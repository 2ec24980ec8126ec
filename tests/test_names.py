"""One meaning for each name: whoever reads a name need not ask which of several things it is."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE, LAB = ROOT / "src" / "halfmask", ROOT / "lab" / "halfmask_lab"
RIDDLES = ("class_means_tell", "pay_for_means", "quietness", "_LOUD", "_HAIR", "cooled", "doors")
"""Names of the past that needed a guide."""


def defined(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The names that a module defines at its top, each with its statement."""
    for statement in tree.body:
        match statement:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.name, statement
            case ast.Assign():
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, statement
            case ast.AnnAssign(target=ast.Name() as target):
                yield target.id, statement


def is_command(statement: ast.stmt) -> bool:
    """Whether it is a command or a group of commands, which is called as users type it."""
    decorators = getattr(statement, "decorator_list", [])
    return any(".command(" in ast.unparse(d) or ".group(" in ast.unparse(d) for d in decorators)


def places(*folders: Path, classes_only: bool = False) -> dict[str, list[str]]:
    """The files of each name; those of Python itself (`__all__`) and of commands left out."""
    found = defaultdict(list)
    for folder in folders:
        for file in sorted(folder.rglob("*.py")):
            for name, statement in defined(ast.parse(file.read_text(encoding="utf-8"))):
                chosen = isinstance(statement, ast.ClassDef) or not (
                    classes_only or name.startswith("_") or is_command(statement)
                )
                if chosen:
                    found[name].append(file.relative_to(ROOT).as_posix())
    return found


def test_no_public_name_is_defined_in_two_modules() -> None:
    twice = {name: files for name, files in places(SOURCE).items() if len(files) > 1}
    assert not twice, "give each its own name, or let one module import it from the other"


def test_no_class_of_the_lab_is_called_as_one_of_the_package() -> None:
    found = places(SOURCE, LAB, classes_only=True)
    assert not {name: files for name, files in found.items() if len(files) > 1}


@pytest.mark.parametrize("word", RIDDLES)
def test_no_name_of_the_past_that_needed_a_guide_is_back(word: str) -> None:
    sources = [*SOURCE.rglob("*.py"), *LAB.rglob("*.py")]
    assert not [file for file in sources if word in file.read_text(encoding="utf-8")]

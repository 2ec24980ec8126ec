"""Mutation score: small faults are put into the code of the guarantees, and tests have to see them.

    PYTHONPATH=tests python -m mutants --count 200 --seed 0 [--file accounting/gaussian.py]

Each mutant changes one place: a comparison, a sign, a constant, `min` for `max`, a check left out.
Tests of its own file run, the quick ones only, until one fails. Survivors are printed with their
place; docs/reliability.md says of each why it survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "halfmask"
_ACCOUNTING = ("accounting/test_pairs.py", "accounting/test_calibrate.py",
               "accounting/test_budget.py", "accounting/test_accountant.py")  # fmt: skip
_LEDGER = ("accounting/test_ledger.py", "accounting/test_ledger_tampering.py",
           "accounting/test_ledger_crashes.py", "test_fuzz.py")  # fmt: skip
_MECHANISMS = ("mechanisms/test_release.py", "mechanisms/test_noise.py",
               "mechanisms/test_clipping_and_sampling.py", "mechanisms/test_one_door.py",
               "mechanisms/test_ziggurat.py", "cli/test_interrupts.py")  # fmt: skip
TESTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("accountant", "gaussian", "calibrate", "budget"), _ACCOUNTING),
    "events": (*_ACCOUNTING, *_LEDGER),
    **dict.fromkeys(("ledger", "storage"), _LEDGER),
    **dict.fromkeys(("noise", "clipping"), _MECHANISMS),
    "release": (*_MECHANISMS, "methods/test_sgd.py", "vertical/test_fdml.py"),
    "encoding": ("test_table.py", "data/test_codes.py", "data/test_cells.py", "test_schema.py"),
    "gd": ("methods/test_gd.py",),
    "moments": ("methods/test_moment_sensitivity.py", "methods/test_one_shot.py"),
    "admm_party": ("vertical/test_sensitivity.py",),
}
"""The tests of each file, by its name, those that fail soonest first."""
SECONDS = 240.0

_COMPARED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
             ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
             ast.Is: ast.IsNot, ast.IsNot: ast.Is}  # fmt: skip
_COUNTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
            ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum",
          "floor": "ceil", "ceil": "floor", "any": "all", "all": "any"}  # fmt: skip


def _changes(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What can be made of one node, in words and as a node."""
    found: list[tuple[str, ast.AST]] = []
    made = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        made.ops[0] = _COMPARED[type(node.ops[0])]()  # type: ignore[attr-defined]
        found.append(("comparison", made))
    elif isinstance(node, ast.BinOp) and type(node.op) in _COUNTED:
        if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
            made.op = _COUNTED[type(node.op)]()  # type: ignore[attr-defined]
            found.append(("arithmetic", made))
    elif isinstance(node, ast.BoolOp):
        made.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()  # type: ignore[attr-defined]
        found.append(("and/or", made))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        found.append(("sign", made.operand))  # type: ignore[attr-defined]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        other = node.value + 1 if type(node.value) is int else node.value * 2 or 1.0
        found.append(("constant", ast.Constant(other)))
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        found.append(("truth", ast.Constant(not node.value)))
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        found.append(("min/max", ast.Name(_NAMES[node.id], ast.Load())))
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        made.attr = _NAMES[node.attr]  # type: ignore[attr-defined]
        found.append(("min/max", made))
    elif isinstance(node, ast.If) and any(isinstance(each, ast.Raise) for each in node.body):
        found.append(("check left out", ast.If(ast.Constant(False), node.body, node.orelse)))
    return found


def mutants(path: Path) -> list[tuple[int, str, str]]:
    """Line, kind and whole text of every mutant of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = {
        id(n) for n in ast.walk(tree) if isinstance(n, (ast.Raise, ast.JoinedStr, ast.AnnAssign))
    }
    made: list[tuple[int, str, str]] = []

    def visit(holder: ast.AST, silent: bool) -> None:
        for name, value in ast.iter_fields(holder):
            listed = value if isinstance(value, list) else [value]
            for place, child in enumerate(listed):
                if not isinstance(child, ast.AST):
                    continue
                # Words of messages and annotations say nothing about a guarantee.
                quiet = (
                    silent
                    or id(child) in told
                    or name in ("annotation", "returns", "decorator_list")
                )
                for kind, other in () if quiet else _changes(child):
                    new = ast.copy_location(other, child)
                    if isinstance(value, list):
                        value[place] = new
                    else:
                        setattr(holder, name, new)
                    text = ast.unparse(ast.fix_missing_locations(tree))
                    if isinstance(value, list):
                        value[place] = child
                    else:
                        setattr(holder, name, child)
                    made.append((getattr(child, "lineno", 0), kind, text))
                visit(child, quiet)

    visit(tree, False)
    return made


def killed(source: Path, tests: tuple[str, ...]) -> str:
    """How a mutant ends: "killed", "survived" or "too long"; in a process of its own."""
    child = os.fork()
    if not child:
        import pytest

        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for channel in (0, 1, 2):
            os.dup2(quiet, channel)
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)
        sys.modules.pop("mutants", None)
        words = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
        code = pytest.main([*words, *(str(ROOT / "tests" / each) for each in tests)])
        os._exit(int(code))
    began = time.monotonic()
    while time.monotonic() - began < SECONDS:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "too long"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", help="only this file, such as accounting/gaussian.py")
    asked = parser.parse_args()
    # What every mutant's tests import; halfmask itself is imported by each of them.
    for name in ("pytest", "hypothesis", "scipy.stats", "scipy.special", "pyarrow", "pandas"):
        __import__(name)
    pool = []
    for path in sorted(SOURCE.rglob("*.py")):
        own = str(path.relative_to(SOURCE))
        if path.stem in TESTS and path.parent.name != "cli" and asked.file in (None, own):
            pool += [(path, *each) for each in mutants(path)]
    chosen = random.Random(asked.seed).sample(pool, min(asked.count, len(pool)))
    found: Counter[str] = Counter()
    print(f"{len(pool)} mutants in all, {len(chosen)} tried", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copied)
        for path, line, kind, text in sorted(chosen, key=lambda each: (each[0], each[1])):
            target = copied / "halfmask" / path.relative_to(SOURCE)
            plain = target.read_text(encoding="utf-8")
            target.write_text(text, encoding="utf-8")
            end = killed(copied, TESTS[path.stem])
            target.write_text(plain, encoding="utf-8")
            found[end] += 1
            if end == "survived":
                where = path.relative_to(SOURCE)
                words = path.read_text(encoding="utf-8").splitlines()[line - 1].strip()
                print(f"survived: {where}:{line} ({kind}): {words}", flush=True)
            print(f"    {dict(found)}", file=sys.stderr, flush=True)
    tried = sum(found.values())
    score = (tried - found["survived"]) / max(tried, 1)
    print(f"{tried} mutants, {dict(found)}, score {score:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

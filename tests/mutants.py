"""Mutation score: small faults are put into the code of the guarantees; tests have to see them.

    PYTHONPATH=tests python -m mutants --count 200 --seed 0 [--file accounting/gaussian.py]

Each mutant changes one place: a comparison, a sign, a constant, `min` for `max`, a check left out.
One file of tests after the other is loaded, the quick ones first. Its tests run on sound code and
have to pass there; noted are their seconds and the functions they enter. Then each mutant that is
still alive is put into a child of its own, in which the tests that enter its function run, the
quickest first, until one fails; the unchanged file that is put in the same way has to pass.
Survivors are printed with their place; docs/reliability.md says of each why it survives.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "halfmask"
_ACCOUNTING = ("accounting/accountant.py", "accounting/gaussian.py", "accounting/calibrate.py",
               "accounting/budget.py", "accounting/events.py")  # fmt: skip
_LEDGER = ("accounting/ledger.py", "accounting/events.py", "storage.py")
_MECHANISMS = ("mechanisms/release.py", "mechanisms/noise.py", "mechanisms/clipping.py",
               "mechanisms/shards.py")  # fmt: skip
TESTS: dict[str, tuple[str, ...]] = {
    "accounting/test_accountant_parts.py": _ACCOUNTING,
    "accounting/test_accountant.py": _ACCOUNTING,
    "mechanisms/test_release_parts.py": _MECHANISMS,
    "data/test_encoding_parts.py": ("data/encoding.py",),
    "mechanisms/test_clipping_and_sampling.py": _MECHANISMS,
    "mechanisms/test_release.py": _MECHANISMS,
    "mechanisms/test_noise.py": _MECHANISMS,
    "mechanisms/test_ziggurat.py": _MECHANISMS,
    "vertical/test_aggregate.py": ("vertical/experts.py",),
    "vertical/test_share_parts.py": ("vertical/admm_party.py",),
    "vertical/test_sensitivity.py": ("vertical/admm_party.py",),
    "methods/test_move_bounds.py": (
        "methods/gd.py", "methods/additive.py", "methods/additive_descent.py",
        "methods/additive_classes.py", "methods/smooth_codes.py", "methods/label_span.py",
        "methods/moments.py"),
    "methods/test_moment_sensitivity.py": ("methods/moments.py",),
    "accounting/test_ledger_tampering.py": _LEDGER,
    "accounting/test_ledger.py": _LEDGER,
    "accounting/test_ledger_crashes.py": _LEDGER,
    "accounting/test_budget.py": _ACCOUNTING,
    "test_table.py": ("data/encoding.py",),
    "data/test_cells.py": ("data/encoding.py",),
    "data/test_codes.py": ("data/encoding.py",),
    "data/test_derived.py": ("data/encoding.py",),
    "methods/test_gd.py": ("methods/gd.py", "mechanisms/clipping.py"),
    "methods/test_additive_classes.py": ("methods/additive_classes.py", "methods/smooth_codes.py"),
    "methods/test_additive.py": (
        "methods/additive.py", "methods/additive_descent.py", "methods/smooth_codes.py"),
    "methods/test_label_span.py": ("methods/label_span.py",),
    "vertical/test_admm.py": ("vertical/admm_party.py",),
    "methods/test_one_shot.py": ("methods/moments.py",),
    "accounting/test_pairs.py": _ACCOUNTING,
    "accounting/test_calibrate.py": _ACCOUNTING,
    "audit/test_replay.py": ("methods/gd.py", "methods/label_span.py", "mechanisms/release.py"),
}  # fmt: skip
"""Which files each file of tests is about, the quick ones first."""
FILES = sorted({own for each in TESTS.values() for own in each})
SENSITIVITY: dict[str, tuple[str, ...]] = {
    "methods/gd.py": ("DescentBounds", "whole_gradient", "label_statistic", "BlockMoves",
                      "spectral_norm", "slope_bound", "_bounded", "weighed_by_unit",
                      "GradientDescent.statistic", "DescentRows.gradient_sum", "_FLOOR"),
    "methods/moments.py": ("MomentSums", "weighted_blocks", "pack_symmetric", "RowBounds",
                           "BlockWeights", "replace_sensitivity", "withhold_sensitivity",
                           "check_row_norms", "_lengths"),
    "methods/additive_descent.py": ("slope_bounds", "slope_moves", "public_label_moves"),
    "methods/additive.py": ("comparison_moves",),
    "methods/additive_classes.py": ("class_moves", "comparison_class_moves"),
    "methods/smooth_codes.py": ("LevelFeatures.diameter",),
    "methods/label_span.py": ("label_sensitivity",),
    "vertical/experts.py": ("count_sensitivity",),
    "vertical/admm_party.py": ("ShareSensitivity", "displacement_sensitivity",
                               "column_sensitivity", "row_sensitivity", "_others", "ShareNoise",
                               "share_noise", "share_target", "AdmmParty.share",
                               "AdmmParty._bound", "AdmmParty._open_series"),
}  # fmt: skip
"""The parts of a file that bound how far a release moves, where a file has others too."""
QUICK = 1.5
"""Seconds of a core: tests that take longer on sound code are left out."""
ENOUGH = 10.0
"""Seconds of a core that sound code takes for a file's tests of one mutant: others are left out."""
EXAMPLES = 10
"""Examples of a property, at most; the same ones for every mutant."""

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
    made: Any = copy.copy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        made.ops = [_COMPARED[type(node.ops[0])](), *node.ops[1:]]
        found.append(("comparison", made))
    elif isinstance(node, ast.BinOp) and type(node.op) in _COUNTED:
        if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
            made.op = _COUNTED[type(node.op)]()
            found.append(("arithmetic", made))
    elif isinstance(node, ast.BoolOp):
        made.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        found.append(("and/or", made))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        found.append(("sign", made.operand))
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        other = node.value + 1 if type(node.value) is int else node.value * 2 or 1.0
        found.append(("constant", ast.Constant(other)))
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        found.append(("truth", ast.Constant(not node.value)))
    elif isinstance(node, ast.Name) and node.id in _NAMES and isinstance(node.ctx, ast.Load):
        found.append(("min/max", ast.Name(_NAMES[node.id], ast.Load())))
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        made.attr = _NAMES[node.attr]
        found.append(("min/max", made))
    elif isinstance(node, ast.If) and any(isinstance(each, ast.Raise) for each in node.body):
        found.append(("check left out", ast.If(ast.Constant(False), node.body, node.orelse)))
    return found


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, in which function (or whose name), and how it is made."""

    own: str
    line: int
    kind: str
    within: str
    words: str
    """The part that is changed, before and after."""
    put: Callable[[], str]
    """The whole text of the file with the change."""


def _text(own: str) -> str:
    return (SOURCE / own).read_text(encoding="utf-8")


def mutants(own: str) -> list[Mutant]:
    """Every mutant of a file of the package."""
    tree = ast.parse(_text(own))
    made: list[Mutant] = []
    parts = SENSITIVITY.get(own)

    def put(holder: Any, name: str, place: int | None, new: ast.AST) -> str:
        old = getattr(holder, name)
        if place is None:
            setattr(holder, name, new)
        else:
            setattr(holder, name, [*old[:place], new, *old[place + 1 :]])
        text = ast.unparse(ast.fix_missing_locations(tree))
        setattr(holder, name, old)
        return text

    def words(old: ast.AST, new: ast.AST) -> str:
        texts = (ast.unparse(each).splitlines()[0] for each in (old, new))
        return " -> ".join(texts)

    def visit(holder: ast.AST, within: tuple[str, ...], inside: bool) -> None:
        for name, value in ast.iter_fields(holder):
            for place, child in enumerate(value if isinstance(value, list) else [value]):
                # Words of messages and annotations say nothing about a guarantee.
                if (
                    not isinstance(child, ast.AST)
                    or isinstance(child, (ast.Raise, ast.JoinedStr))
                    or name in ("annotation", "returns", "decorator_list")
                ):
                    continue
                names, deeper = within, inside
                if not inside and isinstance(child, (ast.ClassDef, ast.FunctionDef)):
                    names = (*within, child.name)
                    deeper = isinstance(child, ast.FunctionDef)
                elif not within and isinstance(child, ast.Assign):
                    names = tuple(t.id for t in child.targets if isinstance(t, ast.Name))
                path = ".".join(names)
                wanted = parts is None or any(f"{path}.".startswith(f"{p}.") for p in parts)
                for kind, other in _changes(child) if wanted else ():
                    new = ast.copy_location(other, child)
                    at = place if isinstance(value, list) else None
                    made.append(
                        Mutant(own, getattr(child, "lineno", 0), kind, path, words(child, other),
                               lambda h=holder, n=name, a=at, o=new: put(h, n, a, o))
                    )  # fmt: skip
                visit(child, names, deeper)

    visit(tree, (), False)
    return made


def _called_at_import(own: str) -> set[str]:
    """The functions of a file that run while it is loaded: what they make is seen by all tests."""
    entered: set[str] = set()
    path = str(SOURCE / own)

    def note(frame: Any, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == path:
            entered.add(frame.f_code.co_qualname)

    module = importlib.import_module(_module(own))
    sys.settrace(note)
    _loaded(_text(own), SOURCE / own, module)
    sys.settrace(None)
    return entered


def _module(own: str) -> str:
    return "halfmask." + own.removesuffix(".py").replace("/", ".")


_PLAIN = (int, float, str, bytes, bool, tuple, frozenset, type(None))


def _function(thing: Any) -> Any:
    """The function behind a property, a class method or what keeps its answers."""
    for name in ("fget", "func", "__func__", "__wrapped__"):
        thing = getattr(thing, name, thing)
    return thing if isinstance(thing, types.FunctionType) else None


def _loaded(text: str, path: Path, module: Any) -> dict[str, Any]:
    """What the text of a file makes, beside the loaded module."""
    scratch = types.ModuleType(module.__name__)
    scratch.__dict__["__file__"] = str(path)
    sys.modules[module.__name__] = scratch  # dataclasses look their module up
    try:
        exec(compile(text, str(path), "exec"), scratch.__dict__)
    finally:
        sys.modules[module.__name__] = module
    return vars(scratch)


def graft(text: str, path: Path, module: Any) -> None:
    """Put the code of a changed file into the loaded module, of which others hold parts already."""
    _graft(_loaded(text, path, module), module, module.__name__)


def _graft(fresh: Any, live: Any, module: str) -> None:
    for name, new in list(fresh.items()):
        old = vars(live).get(name)
        function, other = _function(old), _function(new)
        if isinstance(old, type) and isinstance(new, type) and old.__module__ == module:
            _graft(vars(new), old, module)
        elif function is not None and other is not None and function.__module__ == module:
            if function.__code__.co_filename != "<string>":
                function.__code__ = other.__code__
            if all(isinstance(each, _PLAIN) for each in other.__defaults__ or ()):
                function.__defaults__ = other.__defaults__
            for word, value in (other.__kwdefaults__ or {}).items():
                if isinstance(value, _PLAIN):
                    function.__kwdefaults__[word] = value
        elif name.startswith("__") or repr(old) == repr(new) or type(old) is not type(new):
            continue
        elif isinstance(live, type):
            if isinstance(new, _PLAIN):
                setattr(live, name, new)
        else:
            for each in list(sys.modules.values()):
                if each is not None and vars(each).get(name) is old:
                    setattr(each, name, new)


def _spent() -> float:
    return sum(os.times()[:4])


class _Watch:
    """Tells of a test whether it failed, and ends a child at the first failure where asked to."""

    def __init__(self, ends: bool) -> None:
        self.ends, self.failed, self.skipped = ends, False, False

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed
        self.skipped |= report.skipped
        if report.failed and self.ends:
            os._exit(1)


def _session(name: str, folder: Path) -> Any:
    """pytest with all tests of a file collected and none run."""
    from _pytest.config import _prepareconfig
    from _pytest.main import Session

    words = ["-s", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist",
             "--rootdir", str(ROOT), "--basetemp", str(folder)]  # fmt: skip
    config = _prepareconfig([*words, str(ROOT / "tests" / name)])
    config._do_configure()
    session = Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    session.perform_collect()
    return session


def _fewer_examples(session: Any) -> None:
    from hypothesis import settings

    for item in session.items:
        own = getattr(item.obj, "_hypothesis_internal_use_settings", None)
        if own is not None:
            function = getattr(item.obj, "__func__", item.obj)
            few = min(own.max_examples, EXAMPLES)
            function._hypothesis_internal_use_settings = settings(own, max_examples=few)


Sound = dict[str, tuple[float, list[str]]]


def _sound(session: Any) -> Sound:
    """Run each test on sound code: its seconds, and the functions of the package it enters.

    Each runs in a process of its own, which its timer ends where the test takes too long.
    """
    found: Sound = {}
    for item in session.items:
        began, ended = os.pipe()
        child = os.fork()
        if not child:
            os.close(began)
            _sound_test(session, item, ended)
        os.close(ended)
        with open(began, encoding="utf-8") as answer:
            text = answer.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGPROF or text == "skipped":
            continue
        if status != 0 or not text:
            raise SystemExit(f"{item.nodeid} fails on sound code")
        seconds, entered = json.loads(text)
        if seconds < QUICK:
            found[item.nodeid] = (seconds, entered)
    return found


def _sound_test(session: Any, item: Any, out: int) -> None:
    """Run one test, write what is known of it, and end the process."""
    _silent()
    watch = _Watch(ends=False)
    session.config.pluginmanager.register(watch)
    entered: set[Any] = set()

    def note(frame: Any, event: str, arg: Any) -> None:
        entered.add(frame.f_code)

    signal.setitimer(signal.ITIMER_PROF, 1.5 * QUICK)
    threading.settrace(note)
    sys.settrace(note)
    before = _spent()
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    sys.settrace(None)
    seconds = _spent() - before
    if watch.failed:
        os._exit(1)
    start = str(SOURCE)
    names = {
        f"{code.co_filename}:{code.co_qualname.split('.<locals>')[0]}"
        for code in entered
        if code.co_filename.startswith(start)
    }
    answer = "skipped" if watch.skipped else json.dumps([seconds, sorted(names)])
    with open(out, "w", encoding="utf-8") as file:
        file.write(answer)
    os._exit(0)


def _ended(child: int, seconds: float) -> int | None:
    """The exit code of a child, or None where it had to be ended."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _silent() -> None:
    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for channel in (0, 1, 2):
        os.dup2(quiet, channel)


def tried(mutant: Mutant, session: Any, chosen: list[Any], limit: float) -> str:
    """How a mutant ends: "killed", "survived" or "too long"; in a process of its own."""
    text = mutant.put()
    child = os.fork()
    if not child:
        _silent()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
        try:
            graft(text, SOURCE / mutant.own, importlib.import_module(_module(mutant.own)))
            session.config.pluginmanager.register(_Watch(ends=True))
            for item, after in zip(chosen, [*chosen[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        except BaseException:
            os._exit(1)
        os._exit(0)
    code = _ended(child, 40 * limit)
    if code in (None, -signal.SIGXCPU, -signal.SIGKILL):
        return "too long"
    return "killed" if code else "survived"


def _in_child(work: Callable[[], Any], seconds: float) -> Any:
    """What `work` returns in a process of its own, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            os.setsid()
            try:
                out.write_text(json.dumps(work()), encoding="utf-8")
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        if _ended(child, seconds) != 0:
            raise SystemExit("A file of tests could not be run on sound code.")
        return json.loads(out.read_text(encoding="utf-8"))


def _stage(name: str, alive: list[Mutant]) -> list[str]:
    """How each mutant fares with one file of tests."""
    with tempfile.TemporaryDirectory() as folder:
        session = _session(name, Path(folder) / "tests")
        _fewer_examples(session)
        sound: Sound = _in_child(lambda: _sound(session), 36_000.0)
        quick = sorted(
            (i for i in session.items if i.nodeid in sound), key=lambda i: sound[i.nodeid][0]
        )
        print(f"{name}: {len(alive)} mutants, {len(quick)} of {len(session.items)} tests are quick",
              flush=True)  # fmt: skip

        at_import = {own: _called_at_import(own) for own in {each.own for each in alive}}

        def end(mutant: Mutant, enough: float) -> str:
            entry = f"{SOURCE / mutant.own}:{mutant.within}"
            whole = _named(mutant) is None or mutant.within in at_import[mutant.own]
            chosen, total = [], 0.0
            for item in quick:
                seconds, entered = sound[item.nodeid]
                if total + seconds <= enough and (whole or entry in entered):
                    chosen.append(item)
                    total += seconds
            return tried(mutant, session, chosen, 4 + 3 * total) if chosen else "survived"

        for own in {each.own for each in alive}:
            same = Mutant(own, 0, "unchanged", "", "", partial(_text, own))
            if end(same, ENOUGH / 4) != "survived":
                raise SystemExit(f"{own} fails {name} unchanged")
        found = []
        for mutant in alive:
            found.append(end(mutant, ENOUGH))
            print(f"    {found[-1]}: {mutant.own}:{mutant.line}", file=sys.stderr, flush=True)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", help="only this file, such as accounting/gaussian.py")
    asked = parser.parse_args()
    pool = [each for own in FILES if asked.file in (None, own) for each in mutants(own)]
    alive = random.Random(asked.seed).sample(pool, min(asked.count, len(pool)))
    alive.sort(key=lambda each: (each.own, each.line))
    tried_in_all = len(alive)
    print(f"{len(pool)} mutants in all, {tried_in_all} tried", flush=True)
    sys.path.insert(0, str(SOURCE.parent))
    os.environ["PYTHONPATH"] = str(SOURCE.parent)
    # Loaded once, and not in every process of a test or a mutant: its seconds would count there.
    for heavy in (
        "pytest",
        "numpy",
        "scipy.stats",
        "scipy.fft",
        "scipy.optimize",
        "hypothesis",
        "pandas",
        "pyarrow.compute",
        "pyarrow.dataset",
        "pyarrow.pandas_compat",
    ):
        importlib.import_module(heavy)
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants", database=None, derandomize=True, deadline=None, print_blob=False,
        phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    settings.load_profile("mutants")
    ends: Counter[str] = Counter()
    for name, about in TESTS.items():
        here = [each for each in alive if each.own in about]
        if not here:
            continue
        found = _in_child(partial(_stage, name, here), 360_000.0)
        gone = {id(each) for each, end in zip(here, found, strict=True) if end != "survived"}
        ends.update(end for end in found if end != "survived")
        alive = [each for each in alive if id(each) not in gone]
        print(f"    {dict(ends)}, {len(alive)} alive", flush=True)
    for each in alive:
        print(f"survived: {each.own}:{each.line} in {each.within} ({each.kind}): {each.words}")
    score = 1 - len(alive) / max(tried_in_all, 1)
    print(f"{tried_in_all} mutants, {dict(ends)}, {len(alive)} survived, score {score:.1%}")
    return 0


def _named(mutant: Mutant) -> Any:
    """The function in which a mutant lies, or None where it lies in none."""
    thing: Any = importlib.import_module(_module(mutant.own))
    for name in mutant.within.split("."):
        thing = vars(thing).get(name) if hasattr(thing, "__dict__") else None
    return _function(thing)


if __name__ == "__main__":
    sys.exit(main())

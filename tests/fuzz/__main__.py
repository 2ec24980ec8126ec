"""The driver: cases of all targets within limits of time and memory, faults counted and named."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from fuzz.targets import SECRET, Target
from halfmask.errors import HalfmaskError

SECONDS = 30.0
"""The most that one case may take of a core; ten times as much where it waits."""
MEGABYTES = 512
"""The most by which one case may raise the process's peak of memory."""
LONGEST = 20_000
"""The longest message, in characters: a message is to be read."""


class HangError(BaseException):
    """A case took too long."""


def targets() -> dict[str, type[Target]]:
    """All of them by name, cheap ones first."""
    from fuzz import targets as own
    from fuzz import vertical

    found = [
        *(own.LedgerFile, own.SchemaFile, own.ShortSchema, own.CsvFile, own.ParquetFile),
        *(own.FolderOfParquet, own.Frames, own.DataDictionary, own.Settings, own.SpecialFiles),
        *(own.ModelFolder, vertical.PartyFiles, vertical.OpenedParty, vertical.Messages),
        *(vertical.Records, vertical.Replies, vertical.Memories, vertical.Told),
    ]
    return {each.__name__: each for each in found}


def _alarm(*_: Any) -> None:
    raise HangError


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    """So many seconds of a core, or ten times as many of waiting: the machine may be busy."""
    timers = {signal.SIGPROF: (signal.ITIMER_PROF, 1), signal.SIGALRM: (signal.ITIMER_REAL, 10)}
    before = {number: signal.signal(number, _alarm) for number in timers}
    for timer, times in timers.values():
        signal.setitimer(timer, times * seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def random_of(target: str, seed: int, number: int) -> Random:
    """The case's own random numbers."""
    name = f"{target}/{seed}/{number}".encode()
    return Random(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big"))


def fault_of(target: Target, rng: Random) -> tuple[str, str] | None:
    """Run one case: None, or the kind of fault and what there is to know of it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        with _within(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.case(rng)
    except HalfmaskError as error:
        text = str(error)
        if not text.strip():
            return "no words", type(error).__name__
        if SECRET in text:
            return "a private value in a message", text[:300]
        if len(text) > LONGEST:
            return "a message without end", f"{len(text)} characters: {text[:200]}"
        if error.__cause__ is not None or error.__context__ is not None:
            pass  # kept for a log; `from None` is not asked of every reader
    except HangError:
        return "hang", f"more than {SECONDS:g} s"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        ours = [f for f in frames if f"{os.sep}halfmask{os.sep}" in f.filename] or frames
        place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return f"{type(error).__name__} at {place}", str(error)[:300]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    return ("memory", f"{grown:.0f} MiB") if grown > MEGABYTES else None


def run_target(name: str, seed: int, first: int, last: int, told: Any) -> None:
    """In a process of its own: every case is announced, so that the parent knows which ended it."""
    logging.disable(logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        target = targets()[name](folder)
        for number in range(first, last):
            os.pwrite(told.fileno(), number.to_bytes(8, "big"), 0)
            fault = fault_of(target, random_of(name, seed, number))
            if fault is not None:
                told.seek(0, 2)
                told.write(json.dumps([number, *fault]).encode() + b"\n")
                told.flush()
        os.pwrite(told.fileno(), last.to_bytes(8, "big"), 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fuzzed(name: str, seed: int, cases: int, start: int = 0) -> tuple[list[list[Any]], float]:
    """All cases of one target, with a new process after each that ended the last one."""
    began, faults, first = time.perf_counter(), [], start
    end = start + cases
    while first < end:
        with tempfile.TemporaryFile() as told:
            told.write(first.to_bytes(8, "big"))
            told.flush()
            child = os.fork()
            if not child:
                code = 1
                try:
                    run_target(name, seed, first, end, told)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            reached, seen = first, time.monotonic()
            while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(0.02)
                now = int.from_bytes(os.pread(told.fileno(), 8, 0), "big")
                if now != reached:
                    reached, seen = now, time.monotonic()
                elif time.monotonic() - seen > 600:
                    os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            told.seek(0)
            reached = int.from_bytes(told.read(8), "big")
            faults += [json.loads(line) for line in told.read().splitlines()]
            if status:
                faults.append([reached, "the process ended", f"status {status}"])
            if status and reached == first == start:
                break  # it does not even begin
            first = reached + 1 if status else end
    return faults, time.perf_counter() - began


def main() -> int:
    known = targets()
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="in total, over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=list(known), help="only these")
    parser.add_argument("--case", type=int, help="one case of one target, with its traceback")
    asked = parser.parse_args()
    chosen = asked.target or list(known)
    if asked.case is not None:
        target = known[chosen[0]](Path(tempfile.mkdtemp(prefix="fuzz")))
        target.case(random_of(chosen[0], asked.seed, asked.case))
        return 0
    whole = sum(known[name].share for name in chosen)
    bad = done = 0
    for name in chosen:
        cases = max(1, round(asked.cases * known[name].share / whole))
        faults, seconds = fuzzed(name, asked.seed, cases)
        bad, done = bad + len(faults), done + cases
        print(f"{name:16} {cases:8} cases {len(faults):6} faults {seconds:8.1f} s", flush=True)
        for kind, count in Counter(kind for _, kind, _ in faults).most_common():
            number, _, what = next(each for each in faults if each[1] == kind)
            print(f"    {count:6} x {kind} (first: case {number}): {what}", flush=True)
    print(f"{done} cases, {bad} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

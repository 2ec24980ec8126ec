"""Commands that are killed at any moment: a process that has everything loaded forks one for each.

Each child writes down what it releases the moment noise is drawn, outside the folders of the
command, so that what left can be compared with what the ledgers were charged.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from click.testing import Result

LOADED = (
    *("halfmask.cli.train", "halfmask.cli.vertical", "halfmask.training", "halfmask.data.reading"),
    *("halfmask.additive_model", "halfmask.report.covered", "halfmask.scoring"),
    *("halfmask.vertical.flower_app", "halfmask.neural.method", "sklearn.linear_model"),
    *("torch.func", "halfmask.neural.trainer", "halfmask.neural.method"),
    *("halfmask.neural.pretrain", "sklearn.discriminant_analysis", "sklearn.neighbors"),
)
"""What a command may import: a child that is killed is then at work and not at imports."""
NOTES = ("released", "stderr", "stdout")
"""What a child leaves beside the folders of its command."""


def serve() -> None:
    """Read one command a line, run it in a child, kill it after its time, tell how it ended."""
    from halfmask.accounting.events import RandomisedResponseEvent, event_to_json
    from halfmask.accounting.ledger import Ledger
    from halfmask.mechanisms.release import Releaser

    for name in sys.argv[2:]:
        __import__(name)
    log = ""
    noisy, answered = Releaser.noisy, Releaser.answered

    def note(releaser: Any, event: Any) -> None:
        book = releaser._book
        if event is None or not isinstance(book, Ledger):
            return
        single = {"steps": 1} if hasattr(event, "steps") else {"count": 1}
        line = json.dumps([str(book.path), event_to_json(replace(event, **single))]) + "\n"
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, line.encode())
        os.close(fd)

    def seen_noisy(
        self: Any, value: Any, noise_std: float, event: Any = None, what: str = ""
    ) -> Any:
        found = noisy(self, value, noise_std, event, what)
        note(self, event)
        return found

    def seen_answered(self: Any, answers: Any, epsilon: float, what: str) -> Any:
        found = answered(self, answers, epsilon, what)
        note(self, RandomisedResponseEvent(epsilon=epsilon, categories=2))
        return found

    Releaser.noisy, Releaser.answered = seen_noisy, seen_answered  # type: ignore[method-assign]
    print("ready", flush=True)
    for line in sys.stdin:
        words, wait, change, log, err, out = json.loads(line)
        child = os.fork()
        if not child:
            if change is not None:
                _die_before(change, os.path.dirname(log))
            _child(words, err, out)
        began = time.perf_counter()
        while True:
            pid, status, used = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if wait is not None and time.perf_counter() - began >= wait:
                os.kill(child, signal.SIGKILL)
                wait = None
            time.sleep(0.001)
        took = time.perf_counter() - began
        cost = [used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20]
        print(json.dumps([os.waitstatus_to_exitcode(status), took, *cost]), flush=True)


def _die_before(change: int, folder: str) -> None:
    """Kill this process before a change of a file below `folder`: the first has number 0.

    Files that are opened to be written, bytes, names, folders; what a disk is told to keep. What
    this module itself writes down there does not count.
    """
    own = {os.path.join(folder, name) for name in NOTES}
    left = [change]

    def seen(path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path)
        if name in own or not name.startswith(folder + os.sep):
            return
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def audited(event: str, told: tuple[Any, ...]) -> None:
        if event == "open":
            if told[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                seen(told[0])
        elif event in ("os.rename", "os.link", "os.symlink"):
            seen(told[1])
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod"):
            seen(told[0])

    def with_its_file(call: Any) -> Any:
        def called(fd: int, *more: Any) -> Any:
            seen(os.readlink(f"/proc/self/fd/{fd}"))
            return call(fd, *more)

        return called

    sys.addaudithook(audited)
    for name in ("write", "fsync", "fdatasync", "ftruncate"):
        setattr(os, name, with_its_file(getattr(os, name)))


def _child(words: list[str], err: str, out: str) -> None:
    code = 1
    try:
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        if words[0] == "parties":
            code = _parties(Path(words[1]))
        else:
            from halfmask.cli import main

            try:
                main(words)
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
    except BaseException as error:
        os.write(2, f"Traceback: {error!r}".encode())
    finally:
        os._exit(code)


def _parties(folder: Path) -> int:
    """A label holder and its parties, each opened from its file for every message."""
    from halfmask.errors import HalfmaskError
    from halfmask.vertical.channel import LocalChannel
    from halfmask.vertical.flower_app import run_method
    from halfmask.vertical.network import NetworkParty, read_party_file, read_run_file

    class Afresh:
        def __init__(self, file: Path) -> None:
            self.file = file

        def answer(self, request: Any) -> Any:
            return NetworkParty(read_party_file(self.file)).answer(request)

    settings = read_run_file(folder / "run.toml")
    settings.out.mkdir(exist_ok=True)
    names = ("bank", "telecom")
    try:
        run_method(LocalChannel({n: Afresh(folder / f"{n}.toml") for n in names}), settings)
    except HalfmaskError as error:
        os.write(2, str(error).encode())
        return error.exit_code
    (settings.out / "result.json").write_text("{}")
    return 0


class Server:
    """The process that forks, from the outside.

    `seconds` of a core and `gigabytes` are those of the last command.
    """

    seconds, gigabytes = 0.0, 0.0

    def __init__(self, *modules: str) -> None:
        import subprocess

        tests = str(Path(__file__).parent)
        path = os.pathsep.join([tests, *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kills", "serve", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def run(
        self,
        words: list[Any],
        folder: Path,
        wait: float | None = None,
        change: int | None = None,
    ) -> tuple[int, float, str]:
        """The exit code (-9: killed), the seconds, and what was said on standard error.

        Killed after `wait` seconds, or before change number `change` of a file below `folder`.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        files = [str(folder / name) for name in NOTES]
        asked = [[str(word) for word in words], wait, change, *files]
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code, took, self.seconds, self.gigabytes = json.loads(self.process.stdout.readline())
        err = folder / "stderr"
        return code, took, err.read_text(errors="replace") if err.exists() else ""

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def moment(longest: float, rng: random.Random) -> float:
    """When to kill: anywhere in the command, and somewhat beyond its end."""
    return rng.uniform(0.0, 1.05 * longest)


def killed_at(place: int, ask: Callable[[], Result]) -> int:
    """How `ask` ends in a process of its own that dies where it gives file `place` its name: 9."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code, replace, left = 1, os.replace, [place]

    def killed(*names: Any) -> None:
        if not left[0]:
            os._exit(9)
        left[0] -= 1
        replace(*names)

    try:
        os.replace = killed  # type: ignore[assignment]
        code = ask().exit_code
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()

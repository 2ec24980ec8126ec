"""Real processes on one ledger: killed at random moments, and all charging at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from halfmask.accounting.accountant import epsilon
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import Ledger

# The accountant is loaded once; children are forked from here, so a round costs milliseconds.
KILLS = """
import os, random, signal, sys, time
import halfmask.accounting.accountant
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import Ledger

path, releases, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
EVENT = GaussianEvent(replace=1e-4, withhold=5e-5)

def count_releases():
    return os.path.getsize(releases) if os.path.exists(releases) else 0

def charge_and_release():
    ledger = Ledger.open(path)
    log = os.open(releases, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        ledger.charge([EVENT], "release")
        os.write(log, b"x")
        os.fsync(log)

started = time.monotonic()
for _ in range(4):
    Ledger.open(path).charge([EVENT], "how long one charge takes on this disk")
pause = min(0.2, (time.monotonic() - started) / 2)
random.seed(int(sys.argv[4]))
torn = behind = released = 0
for number in range(rounds):
    child = os.fork()
    if child == 0:
        charge_and_release()
    wanted, deadline = released + random.randrange(3), time.monotonic() + 2
    while count_releases() < wanted and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(random.uniform(0.0, pause))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    check = Ledger.open(path).verify()
    torn, behind = torn + (check.torn_bytes > 0), behind + check.head_behind
    released, charges = count_releases(), len(check.entries) - 4
    assert released <= charges <= released + number + 1, (released, charges)
import json
print(json.dumps({"rounds": rounds, "charges": charges, "released": released,
                  "torn": torn, "behind": behind}))
"""

HAMMER = """
import sys
from halfmask.accounting.events import GaussianEvent
from halfmask.accounting.ledger import Ledger
from halfmask.errors import BudgetExceededError

ledger = Ledger.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
charged = 0
try:
    while True:
        ledger.charge([GaussianEvent(replace=0.02, withhold=0.01)], "process " + sys.argv[2])
        charged += 1
except BudgetExceededError:
    print(charged, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_never_released_more_than_was_charged(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger.create(path, epsilon=10.0, delta=1e-6)
    command = [sys.executable, "-c", KILLS, str(path), str(tmp_path / "releases"), "100", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"] == 100
    assert found["released"] >= 50, "the kills came too early to test anything"
    assert found["charges"] > found["released"], "no kill fell between a charge and its release"
    ledger = Ledger.open(path)
    ledger.charge([GaussianEvent(replace=1e-4, withhold=5e-5)], "the ledger is still usable")
    assert ledger.verify().torn_bytes == 0


@pytest.mark.slow
def test_eight_processes_together_never_exceed_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger.create(path, epsilon=1.0, delta=1e-6)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        counts = [int(child.communicate(timeout=240)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    ledger = Ledger.open(path)
    assert len(ledger.entries()) == sum(counts)
    assert sum(1 for count in counts if count) >= 2, "the processes did not run at the same time"
    assert ledger.spent() <= 1.0 * (1 + 1e-9)
    # The budget was used up: one more would have been too much.
    one = GaussianEvent(replace=0.02, withhold=0.01)
    assert epsilon([*ledger.events(), one], delta=1e-6, relation="replace") > 1.0


@pytest.mark.slow
def test_many_processes_creating_one_ledger_agree_on_it(tmp_path: Path) -> None:
    program = (
        "import sys; from halfmask.accounting.ledger import Ledger; "
        "from halfmask.accounting.events import GaussianEvent; "
        "book = Ledger.open_or_create(sys.argv[1], epsilon=1.0, delta=1e-6); "
        "book.charge([GaussianEvent(replace=0.01, withhold=0.01)], 'one')"
    )
    path = tmp_path / "ledger.jsonl"
    command = [sys.executable, "-c", program, str(path)]
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    errors = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0] * 8, errors
    assert len(Ledger.open(path).events()) == 8

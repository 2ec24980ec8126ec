"""SIGKILL at random moments, then the same command again: no unpaid release, no half model.

Fifty kills of every method: pytest -m hand -s tests/test_kills.py, KILLS=10 for fewer (figures in
docs/reliability.md). A child that is killed has everything loaded, so that moments fall into the
work and not into imports.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.vertical import write_files
from halfmask.accounting.events import covers, event_from_json
from halfmask.accounting.ledger import Ledger
from halfmask.datasets import load_adult
from halfmask.errors import HalfmaskError, InputError
from halfmask.model import Model
from halfmask.vertical.queries import VerticalModel
from kills import LOADED, Server, moment

KILLS = int(os.environ.get("KILLS", "50"))
"""So many that fell into the work; a command that ended before its moment does not count."""
TRIES = 10
"""Commands per kill, at most: a machine that is suddenly quicker ends them before their moment."""
METHODS = {
    "additive": (),
    "gd": (),
    "sgd": (),
    "one-shot": (),
    "label-span": (),
    "dp-sgd": (),
    "mlp": (
        *("--set", "network.steps=12", "--set", "pretrain.epochs=1"),
        *("--set", "pretrain.hidden=8", "--set", "pretrain.networks=1"),
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(*LOADED)
    yield made
    made.close()


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyarrow.csv

    folder = tmp_path_factory.mktemp("people")
    rows, _, schema = load_adult()
    pyarrow.csv.write_csv(rows.slice(0, 600), folder / "people.csv")
    (folder / "people.toml").write_text(schema.to_toml())
    public = [replace(column, role="public") for column in schema.columns]
    label = replace(schema.label, role="private")
    (folder / "label.toml").write_text(replace(schema, label=label, columns=public).to_toml())
    return folder


def command(people: Path, here: Path, method: str, *more: Any) -> list[Any]:
    schema = "label.toml" if method == "label-span" else "people.toml"
    words: list[Any] = ["train", people / "people.csv", "--schema", people / schema]
    words += ["--epsilon", "2", "--method", method, *METHODS[method], "--out", here / "model"]
    return [*words, *more]


def check_paid(here: Path) -> int:
    """All that was released is covered by what its ledger was charged; how many values that is."""
    used: dict[str, list[Any]] = {}
    log = here / "released"
    for line in log.read_text().splitlines() if log.exists() else ():
        ledger, event = json.loads(line)
        used.setdefault(ledger, []).append(event_from_json(event))
    for ledger, events in used.items():
        assert covers(Ledger.open(ledger).events(), events), f"unpaid: {ledger}"
    return sum(map(len, used.values()))


def check_model(folder: Path) -> bool:
    """Whether a model is there; half of one must not be."""
    if (folder / "model.json").exists():
        Model.load(folder).privacy.text()
        return True
    with pytest.raises(InputError):
        Model.load(folder)
    return False


def killed_trainings(
    server: Server, people: Path, place: Path, method: str, count: int, ledger: bool
) -> Counter[str]:
    """Kill a training, go on with it, `count` times; how they ended."""
    found: Counter[str] = Counter()
    rng = random.Random()
    whole = place / "whole"
    whole.mkdir()
    server.run(command(people, whole, method), whole)  # whatever is loaded late
    code, longest, said = server.run(command(people, whole, method, "--resume"), whole)
    (whole / "model").rename(whole / "first")
    code, longest, said = server.run(command(people, whole, method), whole)
    assert code == 0, said
    for number in range(TRIES * count):
        if found["killed"] == count:
            break
        here = place / str(number)
        words = training(people, here, method, ledger and bool(number % 2))
        code, took, said = server.run(words, here, moment(longest, rng))
        longest = longest if code else took
        gone_on(server, here, words, code, said, found)
    assert found["killed"] == count
    return found


def training(people: Path, here: Path, method: str, ledger: bool) -> list[Any]:
    """The words of a training into a new folder, that may charge a ledger of its data set."""
    here.mkdir()
    if not ledger:
        return command(people, here, method)
    Ledger.create(here / "book", epsilon=5.0, delta=1e-6)
    return command(people, here, method, "--ledger", here / "book")


def gone_on(
    server: Server, here: Path, words: list[Any], code: int, said: str, found: Counter[str]
) -> None:
    """The same training again, after the first ended with `code`; counts how that ended."""
    assert code in (-9, 0), said
    found["killed" if code else "ended before"] += 1
    released, done = check_paid(here), check_model(here / "model")
    found["model there"] += done and code == -9
    again, _, said = server.run([*words, "--resume"], here)
    assert again in (0, 2, 3), (again, said)
    assert again != 2 or done, said
    if again == 3:
        assert released or Ledger.open(here / "model" / "ledger.jsonl").events(), said
    assert again or check_model(here / "model")
    assert not list((here / "model").glob("*.part*")) or again == 3
    check_paid(here)
    found[{0: "resumed", 2: "was finished", 3: "budget spent"}[again]] += 1


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_kill_before_every_change_of_a_file_of_a_training(
    server: Server, people: Path, tmp_path: Path, method: str, ledger: bool
) -> None:
    found: Counter[str] = Counter()
    for change in itertools.count():
        here = tmp_path / str(change)
        words = training(people, here, method, ledger)
        code, _, said = server.run(words, here, change=change)
        gone_on(server, here, words, code, said, found)
        if code == 0:
            break
    assert change > 10
    print(f"train {method}, {change} changes of files: {dict(found)}", flush=True)


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", METHODS)
def test_many_kills_of_a_training(
    server: Server, people: Path, tmp_path: Path, method: str
) -> None:
    found = killed_trainings(server, people, tmp_path, method, KILLS, ledger=True)
    print(f"train {method}: {dict(found)}", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gd", "mlp"])
def test_some_kills_of_a_training(
    server: Server, people: Path, tmp_path: Path, method: str
) -> None:
    killed_trainings(server, people, tmp_path, method, 4, ledger=True)


def killed_parties(server: Server, place: Path, method: str, count: int) -> Counter[str]:
    """Kill label holder and parties together, and start them again until they end."""
    found: Counter[str] = Counter()
    rng = random.Random()
    longest = 0.0
    for number in range(TRIES * count + 2):
        if found["killed"] == count:
            break
        here = place / str(number)
        here.mkdir()
        write_files(here, method)
        wait = None if number < 2 else moment(longest, rng)
        code, took, said = server.run(["parties", here], here, wait)
        longest = longest if code else took
        if number < 2:
            assert code == 0, said
            continue
        parties_again(server, here, code, said, found)
    assert found["killed"] == count
    return found


def parties_again(server: Server, here: Path, code: int, said: str, found: Counter[str]) -> None:
    """The same run twice more, after the first ended with `code`; counts how the last ended."""
    assert code in (-9, 0), said
    found["killed" if code else "ended before"] += 1
    check_paid(here)
    for _ in range(2):
        code, _, said = server.run(["parties", here], here)
        assert code in (0, 2, 3), (code, said)
        check_paid(here)
    if code == 0:
        VerticalModel.load(here / "out")
    found[{0: "resumed", 2: "refused", 3: "budget spent"}[code]] += 1
    if code == 2:
        found[said[:120]] += 1


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", ["experts", "admm"])
def test_a_kill_before_every_change_of_a_file_of_parties_and_label_holder(
    server: Server, tmp_path: Path, method: str
) -> None:
    found: Counter[str] = Counter()
    for change in itertools.count():
        here = tmp_path / str(change)
        here.mkdir()
        write_files(here, method)
        code, _, said = server.run(["parties", here], here, change=change)
        parties_again(server, here, code, said, found)
        if code == 0:
            break
    assert change > 10
    print(f"parties {method}, {change} changes of files: {dict(found)}", flush=True)


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", ["experts", "admm"])
def test_many_kills_of_parties_and_label_holder(
    server: Server, tmp_path: Path, method: str
) -> None:
    print(f"parties {method}: {dict(killed_parties(server, tmp_path, method, KILLS))}", flush=True)


@pytest.mark.slow
def test_some_kills_of_parties_and_label_holder(server: Server, tmp_path: Path) -> None:
    killed_parties(server, tmp_path, "admm", 6)


def simulation(place: Path, method: str, out: Path) -> list[Any]:
    words: list[Any] = ["vertical", "simulate", "--schema", place / "schema.toml", "--id", "id"]
    words += ["--label", place / "labels.csv", "--party", f"bank={place}/bank.csv"]
    words += ["--party", f"telecom={place}/telecom.csv", "--method", method]
    return [*words, "--epsilon", "2", "--delta", "1e-6", "--out", out]


def killed_simulations(server: Server, place: Path, method: str, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    rng = random.Random()
    write_files(place, method)
    for number in range(2):
        code, longest, said = server.run(simulation(place, method, place / f"whole{number}"), place)
        assert code == 0, said
    for number in range(TRIES * count):
        if found["killed"] == count:
            break
        words = simulation(place, method, place / str(number))
        code, took, said = server.run(words, place, moment(longest, rng))
        longest = longest if code else took
        simulated_again(server, place, words, code, said, found)
    assert found["killed"] == count
    return found


def simulated_again(
    server: Server, place: Path, words: list[Any], code: int, said: str, found: Counter[str]
) -> None:
    """The same simulation again, after the first ended with `code`; counts how that ended."""
    assert code in (-9, 0), said
    found["killed" if code else "ended before"] += 1
    try:
        VerticalModel.load(words[-1])
        model = True
    except HalfmaskError:
        assert code == -9
        model = False
    found["model there"] += model and code == -9
    again, _, said = server.run(words, place)
    # Only a model may stand in the way of the same command.
    assert again == 0 or (again == 2 and model and "exists already" in said), (again, said)
    found["was finished" if again else "ran again"] += 1
    VerticalModel.load(words[-1])


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", ["experts", "admm"])
def test_a_kill_before_every_change_of_a_file_of_a_simulation(
    server: Server, tmp_path: Path, method: str
) -> None:
    found: Counter[str] = Counter()
    write_files(tmp_path, method)
    for change in itertools.count():
        words = simulation(tmp_path, method, tmp_path / str(change))
        code, _, said = server.run(words, tmp_path, change=change)
        simulated_again(server, tmp_path, words, code, said, found)
        if code == 0:
            break
    assert change > 10
    print(f"simulate {method}, {change} changes of files: {dict(found)}", flush=True)


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", ["experts", "admm"])
def test_many_kills_of_a_simulation(server: Server, tmp_path: Path, method: str) -> None:
    print(
        f"simulate {method}: {dict(killed_simulations(server, tmp_path, method, KILLS))}",
        flush=True,
    )

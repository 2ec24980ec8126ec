"""SIGKILL at random moments, then the same command again: no unpaid release, no half model.

Fifty kills of every method: pytest -m hand -s tests/test_kills.py, KILLS=10 for fewer (figures in
docs/reliability.md). A child that is killed has everything loaded, so that moments fall into the
work and not into imports.
"""

from __future__ import annotations

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
from kills import LOADED, Server, moments

KILLS = int(os.environ.get("KILLS", "50"))
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
    for number, moment in enumerate(moments(count, longest, rng)):
        here = place / str(number)
        here.mkdir()
        shared: tuple[Any, ...] = ()
        if ledger and number % 2:
            Ledger.create(here / "book", epsilon=5.0, delta=1e-6)
            shared = ("--ledger", here / "book")
        words = command(people, here, method, *shared)
        code, _, said = server.run(words, here, moment)
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
    return found


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
    for number in range(count + 2):
        here = place / str(number)
        here.mkdir()
        write_files(here, method)
        words = ["parties", here]
        moment = None if number < 2 else moments(1, longest, rng)[0]
        code, longest_now, said = server.run(words, here, moment)
        if number < 2:
            assert code == 0, said
            longest = longest_now
            continue
        assert code in (-9, 0), said
        found["killed" if code else "ended before"] += 1
        check_paid(here)
        for _ in range(2):
            code, _, said = server.run(words, here)
            assert code in (0, 2, 3), (code, said)
            check_paid(here)
        if code == 0:
            VerticalModel.load(here / "out")
        found[{0: "resumed", 2: "refused", 3: "budget spent"}[code]] += 1
        if code == 2:
            found[said[:120]] += 1
    return found


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


def killed_simulations(server: Server, place: Path, method: str, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    rng = random.Random()
    write_files(place, method)
    words: list[Any] = ["vertical", "simulate", "--schema", place / "schema.toml", "--id", "id"]
    words += ["--label", place / "labels.csv", "--party", f"bank={place}/bank.csv"]
    words += ["--party", f"telecom={place}/telecom.csv", "--method", method]
    words += ["--epsilon", "2", "--delta", "1e-6", "--out"]
    for number in range(2):
        code, longest, said = server.run([*words, place / f"whole{number}"], place)
        assert code == 0, said
    for number, moment in enumerate(moments(count, longest, rng)):
        out = place / str(number)
        code, _, said = server.run([*words, out], place, moment)
        assert code in (-9, 0), said
        found["killed" if code else "ended before"] += 1
        try:
            VerticalModel.load(out)
            found["model there"] += code == -9
        except HalfmaskError:
            assert code == -9
        again, _, said = server.run([*words, out], place)
        assert again in (0, 2), said
        found["ran again" if again == 0 else f"refused: {said[:90]}"] += 1
        VerticalModel.load(out)
    return found


@pytest.mark.slow
@pytest.mark.hand
@pytest.mark.parametrize("method", ["experts", "admm"])
def test_many_kills_of_a_simulation(server: Server, tmp_path: Path, method: str) -> None:
    print(
        f"simulate {method}: {dict(killed_simulations(server, tmp_path, method, KILLS))}",
        flush=True,
    )

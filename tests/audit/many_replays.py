"""Replays by the thousand: how many of each kind, and the largest share of its charge each reached.

`python tests/audit/many_replays.py` replays every method and every party on random neighbours,
`additive` on so many of each set of roles and on tables at the edges of what is allowed, rows being
replaced and withheld, and then the neighbours that are furthest apart. A fit that goes beyond its
charge ends it with the case that did. Its figures are in docs/audit.md.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import test_replay
import test_replay_vertical
from replays import (
    EDGE_EPSILONS,
    LOUD,
    PRIVATE,
    EdgePair,
    Pair,
    assert_within_charge,
    corner_pairs,
    edge_pairs,
    neighbour_pairs,
    share_withheld,
)
from test_every_mechanism import share_of_game

from halfmask.accounting.budget import Budget
from halfmask.audit.mechanisms import MECHANISMS
from halfmask.progress import side_by_side

TOGETHER = 50
"""Replays of one kind that a worker makes at a time."""
Seen = tuple[str, str, float]
Work = tuple[str, Callable[[], Iterator[Seen]]]


def kind_of(pair: Pair) -> str:
    """What is to be predicted, and what is special about the rows."""
    label = pair.schema.label
    words = ["number" if label.classes is None else f"{len(label.classes)} classes"]
    words += ["units"] * (pair.schema.unit is not None)
    words += ["missing labels"] * (label.missing == "skip")
    words += ["weights"] * (isinstance(pair, EdgePair) and pair.sample_weight is not None)
    return ", ".join(words)


def random_pairs(
    name: str, kinds: dict[str, Any], share: Callable[[Pair], float], count: int
) -> Iterator[Seen]:
    seen: list[Seen] = []
    test_replay.over_pairs(
        neighbour_pairs(**kinds),
        count,
        lambda pair: seen.append((name, kind_of(pair), share(pair))),
    )
    yield from seen


def random_edges(
    name: str, share: Callable[[EdgePair], float], epsilon: float, count: int
) -> Iterator[Seen]:
    seen: list[Seen] = []
    test_replay.over_pairs(
        edge_pairs(epsilons=(epsilon,)),
        count,
        lambda pair: seen.append((name, kind_of(pair), share(pair))),
    )
    yield from seen


def random_parties(name: str, relation: str, count: int) -> Iterator[Seen]:
    seen: list[Seen] = []
    check = test_replay_vertical.check_party(name, relation)
    test_replay_vertical.over(
        test_replay_vertical.tasks(),
        count,
        lambda drawn: seen.append((f"{name} ({relation})", "parties", check(drawn))),
    )
    yield from seen


def far_pairs(
    name: str, method: str, options: Any, roles: str, label: str, unit: bool
) -> Iterator[Seen]:
    for pair in corner_pairs(roles, label, unit=unit):
        yield f"far: {name}", kind_of(pair), test_replay.share_of(pair, method, options)


def far_game(name: str) -> Iterator[Seen]:
    game = MECHANISMS[name](Budget(epsilon=4.0, delta=1e-5))
    yield f"game: {name}", "game", share_of_game(game)


def random_work(replays: int) -> Iterator[Work]:
    """So many replays over all methods and parties, the slower ones having fewer."""
    kinds: list[tuple[str, int, Callable[[int], Iterator[Seen]]]] = []
    for method, cases in test_replay.CASES.items():
        for options, pairs, examples in cases:
            share = partial(test_replay.share_of, method=method, options=options)
            name = f"{method} (replace)"
            kinds.append((name, examples, partial(random_pairs, name, pairs, share)))
    for method, (options, pairs, examples) in test_replay.WITHHELD.items():
        share = partial(test_replay.share_of, method=method, options=options, relation="withhold")
        name, pairs = f"{method} (withhold)", {**pairs, "withheld": True}
        kinds.append((name, examples, partial(random_pairs, name, pairs, share)))
    for party in test_replay_vertical.CASES:
        for relation in ("replace", "withhold"):
            examples = test_replay_vertical.EXAMPLES // 2
            kinds.append((party, examples, partial(random_parties, party, relation)))
    times = replays / sum(examples for _, examples, _ in kinds)
    for name, examples, run in kinds:
        yield from portions(name, math.ceil(times * examples), run)


def additive_work(replays: int) -> Iterator[Work]:
    """So many replays of `additive` for each set of roles, half of them through every stage."""

    def share(epsilon: float, pair: Pair) -> float:
        estimator = pair.estimator("additive", epsilon=epsilon)
        return assert_within_charge(estimator, pair.frame, pair.neighbour, replaced=pair.replaced)

    for roles in PRIVATE:
        for epsilon in (1.0, LOUD):
            name = f"additive, roles {roles}, epsilon {epsilon:g}"
            run = partial(random_pairs, name, {"roles": (roles,)}, partial(share, epsilon))
            yield from portions(name, math.ceil(replays / 2), run)


def edge_work(replays: int) -> Iterator[Work]:
    """So many replays of `additive` at the edges, half of them with rows that are withheld."""

    def replaced(pair: EdgePair) -> float:
        return assert_within_charge(
            pair.estimator("additive", epsilon=pair.epsilon),
            pair.frame,
            pair.neighbour,
            sample_weight=pair.sample_weight,
        )

    count = math.ceil(replays / 2 / len(EDGE_EPSILONS))
    for word, share in (("replace", replaced), ("withhold", share_withheld)):
        for epsilon in EDGE_EPSILONS:
            name = f"additive at the edges, epsilon {epsilon:g} ({word})"
            yield from portions(name, count, partial(random_edges, name, share, epsilon))


def portions(name: str, count: int, run: Callable[[int], Iterator[Seen]]) -> Iterator[Work]:
    while count > 0:
        yield name, partial(run, min(count, TOGETHER))
        count -= TOGETHER


def far_work() -> Iterator[Work]:
    for case in test_replay.TIGHT:
        method, _, roles, label, unit = case
        name = f"{method}, roles {roles}, label {label}{', units' * unit}"
        yield name, partial(far_pairs, name, *case)
    for name in MECHANISMS:
        if name != "randomised-response":  # its answers have no noise to measure by
            yield name, partial(far_game, name)


def table(title: str, seen: list[Seen], column: int) -> str:
    """How many of each, and the largest share."""
    lines = [f"| {title} | replays | largest share |", "|---|---|---|"]
    for name in dict.fromkeys(each[column] for each in seen):
        shares = [each[2] for each in seen if each[column] == name]
        lines.append(f"| {name} | {len(shares):,} | {max(shares):.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replays", type=int, default=10_000, help="over all methods")
    parser.add_argument("--additive", type=int, default=2_000, help="of each set of roles")
    parser.add_argument("--edges", type=int, default=2_000, help="of additive at the edges")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    work = [*random_work(asked.replays), *additive_work(asked.additive)]
    work += [*edge_work(asked.edges), *far_work()]

    def done(count: int) -> None:
        seconds = time.perf_counter() - began
        name = work[count - 1][0]
        print(f"{count} of {len(work)} portions, {seconds:.0f} s: {name}", flush=True)

    # By their places, since the work itself cannot be sent to another process.
    found = side_by_side(lambda place: list(work[place][1]()), range(len(work)), done)
    seen = [each for part in found for each in part]
    games = [each for each in seen if each[1] == "game"]
    replays = [each for each in seen if each[1] != "game"]
    kinds = sorted(replays, key=lambda each: each[1])
    print(table("method", replays, 0), table("kind of table", kinds, 1), sep="\n\n")
    print("", table("two inputs of a game", games, 0), "", sep="\n")
    print(f"{len(replays):,} replays and {len(games)} games, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

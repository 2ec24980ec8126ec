"""The noise source in figures: `PYTHONPATH=tests python -m noise_figures --draws 10000000`.

Kolmogorov and Smirnov, tails, forks, threads, and an attack by the last digits, which succeeds on
noise as it is usually drawn and must fail on ours. Ends with 1 where a figure is out of its bounds;
each bound is passed by chance less than once in a million runs.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import threading
import time

import numpy as np
from scipy import stats

from halfmask.mechanisms.noise import SystemNoise, add_gaussian


def drawn_in_a_child(size: int) -> bytes:
    return SystemNoise().normal(size).tobytes()


def low_bits_leak(naive: bool, draws: int) -> float:
    """How far the last digits of 0 + noise and of 1 + noise differ: 0 tells nothing (Mironov 2012).

    Among releases near zero: 1 + x, rounded, is always a multiple of 2^-53, and 0 + x has all the
    digits of x. So an attacker who sees digits beyond that knows that the value was 0.
    """
    shares = []
    for value in (0.0, 1.0):
        if naive:
            released = value + np.random.default_rng().normal(size=draws)
        else:
            released = add_gaussian(np.full(draws, value), 1.0, SystemNoise())
        near = released[np.abs(released) < 0.125] * 2.0**53
        shares.append(float((near == np.rint(near)).mean()))
    return abs(shares[1] - shares[0])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m noise_figures", description=__doc__)
    parser.add_argument("--draws", type=int, default=2_000_000)
    asked = parser.parse_args()
    began, bad = time.perf_counter(), 0

    def figure(what: str, value: float, low: float, high: float) -> None:
        nonlocal bad
        fine = low <= value <= high
        bad += not fine
        print(f"{what:44} {value:12.6g}  within {low:.4g} to {high:.4g}: {fine}", flush=True)

    left, distance, squares = asked.draws, 0.0, 0.0
    beyond = dict.fromkeys((2.0, 3.0, 4.0, 5.0), 0)
    while left:
        drawn = SystemNoise().normal(min(left, 1_000_000))
        left -= len(drawn)
        distance = max(distance, stats.kstest(drawn, "norm").statistic * math.sqrt(len(drawn)))
        squares += float(drawn @ drawn)
        for limit in beyond:
            beyond[limit] += int((np.abs(drawn) > limit).sum())
    n = asked.draws
    figure("Kolmogorov-Smirnov, root n times D, worst", distance, 0.2, 3.2)
    spread = 5.5 * math.sqrt(2 / n)
    figure("variance", squares / n, 1 - spread, 1 + spread)
    for limit, count in beyond.items():
        share = 2 * stats.norm.sf(limit)
        room = 5.5 * math.sqrt(n * share) + 6
        figure(f"draws beyond {limit:g}, of {n * share:.1f} expected", count, n * share - room,
               n * share + room)  # fmt: skip
    with multiprocessing.get_context("fork").Pool(8) as pool:
        children = pool.map(drawn_in_a_child, [64] * 64)
    figure("equal streams among 64 of forked children", 64 - len(set(children)), 0, 0)
    made: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: made.append(drawn_in_a_child(64))) for _ in range(32)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    figure("equal streams among 32 threads", 32 - len(set(made)), 0, 0)
    figure("low bits tell 0 from 1, usual noise", low_bits_leak(True, 200_000), 0.5, 1.0)
    figure("low bits tell 0 from 1, our noise", low_bits_leak(False, 200_000), 0.0, 0.0)
    print(f"{n} draws, {bad} out of bounds, {time.perf_counter() - began:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

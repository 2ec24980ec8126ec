"""Damaged and hostile input to every reader: `PYTHONPATH=tests python -m fuzz --cases 1000000`.

A case is a number: the same target, seed and number always make the same input. Figures of the
last long run: docs/reliability.md.
"""

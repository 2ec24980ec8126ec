"""Every guarantee that the code claims is written down."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROOF = re.compile(r"docs/proofs/[\w-]+\.md")


def claims() -> dict[str, list[str]]:
    """Proof files by the modules that name them; a claim may run over a line end."""
    named: dict[str, list[str]] = {}
    for file in sorted((ROOT / "src" / "halfmask").rglob("*.py")):
        for proof in sorted(set(PROOF.findall(file.read_text(encoding="utf-8")))):
            named.setdefault(proof, []).append(str(file.relative_to(ROOT)))
    return named


def test_every_claimed_proof_exists() -> None:
    named = claims()
    assert "docs/proofs/gaussian.md" in named
    missing = {proof: files for proof, files in named.items() if not (ROOT / proof).is_file()}
    assert not missing, f"Proofs that are claimed but not written: {missing}"


def test_every_guarantee_names_a_proof() -> None:
    for file in sorted((ROOT / "src" / "halfmask").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for claim in re.finditer(r"Guarantee:\s*(\S+)", text):
            assert PROOF.match(claim.group(1)), f"{file.relative_to(ROOT)}: {claim.group(0)}"


def test_every_proof_names_the_tests_that_attack_it() -> None:
    """Files of tests that exist, and functions that are in one of the files a proof names."""
    tests = {
        file.relative_to(ROOT).as_posix(): set(re.findall(r"def (test_\w+)\(", file.read_text()))
        for file in (ROOT / "tests").rglob("test_*.py")
    }
    for proof in sorted((ROOT / "docs" / "proofs").glob("*.md")):
        named = re.findall(r"\btests/[\w/]+\.py|\btest_\w+(?:\.py)?", proof.read_text("utf-8"))
        files = [name for name in named if name.endswith(".py")]
        # A file may stand by its name alone, after the folder was told.
        found = {
            name: [file for file in tests if f"/{file}".endswith(f"/{name}")] for name in files
        }
        missing = [name for name in files if not found[name]]
        assert files, f"{proof.name} names no file of tests"
        assert not missing, f"{proof.name} names files that are not there: {missing}"
        there = {test for places in found.values() for file in places for test in tests[file]}
        lost = sorted({name for name in named if not name.endswith(".py")} - there)
        assert not lost, f"{proof.name} names tests that are in none of its files: {lost}"


def test_the_index_lists_every_proof_and_every_test_it_names_is_there() -> None:
    folder = ROOT / "docs" / "proofs"
    index = (folder / "README.md").read_text(encoding="utf-8")
    listed = {f"{name}.md" for name in re.findall(r"^\| \[\w+\]\((\w+)\.md\)", index, re.MULTILINE)}
    assert listed == {proof.name for proof in folder.glob("*.md")} - {"README.md"}
    file, named = None, 0
    for link, test in re.findall(r"\((\.\./\.\./tests/[\w/]+\.py)\)|`(test_\w+)`", index):
        if link:
            file = (folder / link).read_text(encoding="utf-8")
            continue
        assert file is not None, f"{test} stands before the file it is in"
        assert f"def {test}(" in file, f"{test} is not in the file named before it"
        named += 1
    assert named > 40

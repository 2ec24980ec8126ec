"""A real model, trained once for all tests of the report."""

from __future__ import annotations

import pytest
from hostile import SCHEMA, Trained, run, write_rows


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Trained by the command line, as a user would."""
    place = tmp_path_factory.mktemp("report")
    data, schema, folder = place / "rows.csv", place / "rows.toml", place / "model"
    write_rows(data)
    schema.write_text(SCHEMA, encoding="utf-8")
    run("train", data, "--schema", schema, "--epsilon", 2, "--delta", 1e-5, "--out", folder)
    return Trained(folder=folder, data=data, schema=schema)

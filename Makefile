# Everything happens inside .venv; a fresh clone needs nothing but python3 and make.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: test soak lint demo clean

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev]' --editable ./lab
	touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff check src lab tests
	$(BIN)/ruff format --check src lab tests
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal --durations=40

# One worker more than cores: tests of network processes mostly wait.
soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not alone and not hand" -n 3 --dist worksteal
	$(BIN)/python -m pytest -m "slow and alone and not hand"

demo: $(STAMP)
	$(BIN)/halfmask demo

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

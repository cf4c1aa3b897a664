# make demo: from nothing to figures.   make test: from nothing to a tested checkout.
# Both make the environment in .venv once; a second call does not install again.

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3.12 python3.13 python3.11 python3 python; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; break; }; done)
BIN := .venv/bin

.PHONY: demo test soak test-all test-slurm check format clean

demo: .venv/.installed
	$(BIN)/python -m sweeper -m batch=3840,30720 warmup=0,5,10,20
	$(BIN)/python -m analysis figures
	@echo
	@echo "Results: $(CURDIR)/results (pandas.read_parquet(\"results/runs\")). Figures: $(CURDIR)/figures"

test: .venv/.installed-dev
	$(BIN)/python -m pytest -m "not slow and not slurm_all"

test-all: .venv/.installed-dev
	$(BIN)/python -m pytest

soak: .venv/.installed-dev
	SWEEPER_SOAK_KILLS=30 $(BIN)/python -m pytest tests/test_soak.py tests/sweeper/tuning/test_killed.py

test-slurm: .venv/.installed-dev
	.ci/install-slurm
	$(BIN)/python -m pytest tests/slurm

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv

.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { \
		echo "sweeper needs Python 3.11, 3.12 or 3.13; got none of them on PATH"\
		"($$(python3 --version 2>&1 || true))."\
		"Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { \
		echo "sweeper needs Python 3.11, 3.12 or 3.13; got $$($(PYTHON) --version)."\
		"Name another: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || { \
		echo "Python's venv module must work; got the error above. Install it (Debian: python3-venv)."; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

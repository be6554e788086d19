# `make demo` and `make test` do all set-up on a machine that has only Python 3.11+.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
BIN = $(VENV)/bin
# One more than there are cores: many a test waits for a server's process.
PARALLEL = -n $(shell expr `getconf _NPROCESSORS_ONLN` + 1) --dist worksteal
SHIPPED = jormungandr jormungandr_envs wrappers/jormungandr_wrappers

.PHONY: demo test check soak speed setup lint clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): about 1 GB, a few minutes."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/jormungandr demo

test: setup
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SHIPPED)

check: lint
	$(BIN)/python -m pytest $(PARALLEL)

# Longer than a check should take: `make soak KILLS=2000 SOAK_ARGS="--seed 7"`.
KILLS ?= 500
DELETIONS ?= 1000
SOAK_ARGS ?=
BODIES ?= 1000000
soak: setup
	$(BIN)/python -m tests.faults.test_kill_loop --kills $(KILLS) $(SOAK_ARGS)
	BODIES=$(BODIES) $(BIN)/python -m pytest -q -s tests/edge/test_mutated_bodies.py
	$(BIN)/python -m tests.faults.test_delete_race --deletions $(DELETIONS)
	$(BIN)/python -m tests.faults.test_outage --seconds 60

# Beside the peers, in an environment of their own: half an hour on an idle machine.
speed: setup
	$(BIN)/python -m benchmarks.speed

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

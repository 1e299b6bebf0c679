# Every target sets up what it needs: a Python from 3.11 on, git and make are enough.

VENV ?= .venv
SEEDS ?= 300
PYTEST ?=
JOBS ?= 2
HELP_WIDTH := 14

RUN := $(VENV)/bin/python
CANDIDATES := $(PYTHON) python3.14 python3.13 python3.12 python3.11 python3 python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo demo-pipeline test check format crash sim model bench bench-quick docs nightly clean

help: ## Show this list
	@echo "make TARGET"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-$(HELP_WIDTH)s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo; echo "  PYTHON=…       the Python that makes $(VENV) (default: the first of 3.14 … 3.11 that works)"
	@echo "  PYTEST=…       more arguments for pytest: make test PYTEST='-k approval'"
	@echo "  SEEDS=…        how many seeds the simulator tries (now $(SEEDS))"

# ── the main job ────────────────────────────────────────────────────────────────────────────────────────────

demo: $(VENV)/.ready ## Triage a folder of e-mails, kill the worker on the way, and see what was repeated
	@$(RUN) examples/triage/demo.py

demo-pipeline: $(VENV)/.ready ## Take documents through a pipeline of phases, killed at every write
	@$(RUN) examples/documents/demo.py

# ── what has to hold ────────────────────────────────────────────────────────────────────────────────────────

test: $(VENV)/.dev ## Run the tests
	$(RUN) -m pytest -n $(JOBS) --dist worksteal $(PYTEST)

check: $(VENV)/.dev ## Format, lint, types and import contracts
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/pyright --pythonpath $(RUN)
	$(VENV)/bin/lint-imports --no-cache

format: $(VENV)/.dev ## Bring the source into shape
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

crash: $(VENV)/.dev ## Kill agents at every store call and every callback, and count what happened twice
	$(RUN) -m perdure.testing.crash

sim: $(VENV)/.dev ## Simulate whole clusters under faults, SEEDS times
	$(RUN) -m perdure.testing.simulation --seeds $(SEEDS)

model: $(VENV)/.dev ## Check the protocol's model exhaustively
	$(RUN) -m model

bench: $(VENV)/.dev ## Measure everything, against the floor and the bare agent loop
	$(RUN) -m benchmarks

bench-quick: $(VENV)/.dev ## Measure overhead, size and import time as ratios, in a minute or two
	$(RUN) -m benchmarks.quick

docs: $(VENV)/.dev ## Build the documentation
	$(RUN) docs/build.py

nightly: $(VENV)/.dev ## Everything, with many seeds; needs the programs pgbouncer and faketime
	.ci/run
	$(RUN) -m pytest -m nightly
	$(MAKE) crash demo demo-pipeline bench sim SEEDS=5000

clean: ## Remove what make has set up
	rm -rf $(VENV)

# ── setting up ──────────────────────────────────────────────────────────────────────────────────────────────

# A candidate counts only if it runs: a version manager leaves names on the path that start nothing.
$(VENV)/bin/python:
	@for each in $(CANDIDATES); do \
	  if "$$each" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "Setting up $(VENV) with $$("$$each" --version)"; \
	    exec "$$each" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "Perdure needs Python 3.11 or newer with the venv module, and none of these is one: $(CANDIDATES)." >&2; \
	echo "Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1

# pip knows dependency groups from 25.1 on; what comes with Python may be older.
$(VENV)/.pip: | $(VENV)/bin/python
	@$(RUN) -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.ready: pyproject.toml | $(VENV)/.pip
	@echo "Installing Perdure into $(VENV)"
	@$(RUN) -m pip install --quiet -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.pip
	@echo "Installing Perdure and what its tests need into $(VENV)"
	@$(RUN) -m pip install --quiet -e . --group dev
	@touch $@ $(VENV)/.ready

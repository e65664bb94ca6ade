# What a contributor types. CI runs the same: .ci/run is "make check" and "make test".
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TESTS ?= tests
ARGS ?=

.PHONY: help demo test check format docs fuzz bench system clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: $(VENV)/.installed ## Install into .venv and show what poolmgr does, on a small pool of real images
	@$(BIN)/poolmgr demo

test: system $(VENV)/.dev ## Run all tests (as root: first install the system packages they need)
	@scripts/install_harbor.sh || { echo "the tests that compare with Harbor are skipped"; [ -z "$${CI:-}" ]; }
	$(BIN)/python -m pytest -n 2 $(ARGS) $(TESTS)

check: $(VENV)/.dev ## Format, lint, types, layers, and that the generated docs are current
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	PYTHONPATH=. $(BIN)/python scripts/docs.py --check

format: $(VENV)/.dev ## Format the code and write the generated docs again
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	PYTHONPATH=. $(BIN)/python scripts/docs.py

docs: $(VENV)/.dev ## Write the generated parts of the docs again
	PYTHONPATH=. $(BIN)/python scripts/docs.py

fuzz: $(VENV)/.dev ## Long random tests, outside the ordinary suite
	$(BIN)/python -m pytest -m fuzz $(ARGS) $(TESTS)

bench: $(VENV)/.dev ## Every benchmark, each a table of ratios
	@for script in benchmarks/bench_*.py; do echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script; done

system:
	@scripts/system_packages.sh

clean: ## Remove the virtual environment and what tools left
	rm -rf $(VENV) .harbor .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist

$(BIN)/python:
	@python=$$(scripts/find_python.sh) && echo "making $(VENV) with $$python" && "$$python" -m venv --clear $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing poolmgr into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.installed
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) install --group dev
	@touch $@

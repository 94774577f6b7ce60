# `make demo` and `make test` work from a clean clone: each sets up what it needs first.
PYTHON ?= $(or $(shell command -v python3.11),python3)
# The one torch of the environment. Where the default index serves CUDA builds, point TORCH_INDEX at a CPU one.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard csrc/*) setup.py pyproject.toml
EXTENSION := $(VENV)/.built

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint golden fuzz bench docs clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'setuptools>=77' wheel ninja numpy
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	touch $@

# Built with the environment's own torch (no build isolation), so no second torch is ever fetched.
$(EXTENSION): $(VENV)/.torch $(SOURCES)
	$(BIN)/pip install --quiet --no-build-isolation -e '.[dev]'
	touch $@

setup: $(EXTENSION) ## make the virtual environment and build the extension

demo: $(EXTENSION) ## compile AlexNet and BERT-base, compare with eager and torch.compile
	$(BIN)/python examples/demo.py

test: $(EXTENSION) ## run the test suite
	$(BIN)/python -m pytest

lint: $(EXTENSION) ## ruff, pyright, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

golden: $(EXTENSION) ## rewrite the golden files from what the code prints now
	$(BIN)/python -m pytest tests/golden --update-golden

fuzz: $(EXTENSION) ## the fuzzers, longer than in `make test`
	LAMPWORK_FUZZ=1400 $(BIN)/python -m pytest -k fuzz

$(VENV)/.bench: $(EXTENSION)
	$(BIN)/pip install --quiet --no-build-isolation -e '.[bench]'
	touch $@

bench: $(VENV)/.bench ## measure against every peer; writes bench.json (takes long; see docs/benchmarks.md)
	$(BIN)/python -m lampwork.bench --json bench.json

docs: $(EXTENSION) ## regenerate the reference pages under docs/ from the code
	$(BIN)/python docs/generate.py

clean: ## remove build products, keep the virtual environment
	rm -rf build src/lampwork/_C*.so $(EXTENSION)

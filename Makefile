# The same verbs on a laptop and in CI. Each one sets up what it needs; the second call installs nothing.

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
export PYTHON VENV TORCH VENV_ARGS

.DEFAULT_GOAL := help
.PHONY: help setup smoke test lint format docs check bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv and install everything into it, once
	@bash scripts/setup

smoke: setup ## a whole PPO run on a tiny model through Ray, with checks; ARGS="KEY=VALUE ..."
	@$(BIN)/devkit smoke --tiny $(ARGS)

test: setup ## the tests; ARGS="-n0 tests/test_cli.py"
	@$(BIN)/python -m pytest $(ARGS)

lint: setup ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## put the code in shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## write the generated parts of the documentation anew
	@$(BIN)/python scripts/generate_docs.py

check: lint test smoke ## all that CI runs

bench: setup ## the benchmarks, one after another
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean: ## remove caches and builds; .venv stays
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find devkit trainer tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

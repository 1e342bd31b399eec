# The same verbs on a laptop and in CI. Each one sets up what it needs; the second call installs nothing.

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
export PYTHON VENV TORCH VENV_ARGS LATEST

.DEFAULT_GOAL := help
.PHONY: help setup lock smoke demo test test-ray test-trainer test-verdicts test-walks test-mutants test-gpu test-hosts \
	test-sglang test-vllm test-faults test-programs test-vscode test-latest test-all record-faults lint format docs vscode bench clean

help: ## this list
	@[ ! -t 1 ] || width=$$(stty size 2>/dev/null | cut -d ' ' -f 2); \
	awk -F ':.*## ' -v width="$${width:-0}" '/^[a-z-]+:.*## / { \
		line = sprintf("make %-13s", $$1); \
		count = split($$2, words, " "); \
		for (i = 1; i <= count; i++) { \
			if (width > 0 && length(line " " words[i]) > width) { print line; line = sprintf("%18s", "") } \
			line = line " " words[i] \
		} \
		print line \
	}' $(MAKEFILE_LIST)

setup: ## make .venv and install everything into it as in requirements.lock, once; LATEST=1 for the newest of everything
	@bash scripts/setup

lock: setup ## rewrite requirements.lock from pyproject.toml; ARGS=--upgrade for the newest of everything
	@scripts/lock $(ARGS)

smoke: setup ## a whole PPO run on a tiny model through Ray, with checks; ARGS="KEY=VALUE ..."
	@$(BIN)/devkit smoke --tiny $(ARGS)

demo: setup ## a tiny model learns to add on this machine, in two minutes; ARGS="KEY=VALUE ..."
	@$(BIN)/python -m trainer.demo $(ARGS)

test: setup ## the quick tests (10 minutes on two cores); a file that is named runs whole: ARGS="-n0 tests/test_cli.py"
	@$(BIN)/python -m pytest --tier=quick --once-more --durations=40 --durations-min=5 $(ARGS)

test-ray: setup ## the tests of devkit that start Rays of their own; ARGS=tests/debug
	@$(BIN)/python -m pytest --tier=ray --once-more $(ARGS)

test-trainer: setup ## the tests that start ranks and runs of the trainer, the smoke test and the demos; ARGS=tests/smoke
	@$(BIN)/python -m pytest --tier=trainer --once-more $(ARGS)

test-verdicts: setup ## what devkit says of programs that stand, crash or learn nothing; ARGS="-k spills"
	@$(BIN)/python -m pytest --tier=verdicts --once-more $(ARGS)

test-walks: setup ## the pages and first commands, typed on machines that nobody has used yet; as root. ARGS="-k README"
	@$(BIN)/python -m pytest --tier=walks --once-more tests/walks $(ARGS)

test-mutants: setup ## each mistake of tests/mutants through a whole smoke run (10 minutes); ARGS="-k advantages"
	@$(BIN)/python -m pytest --tier=mutants --once-more tests/mutants $(ARGS)

test-gpu: setup ## on a machine with NVIDIA GPUs, two for all of it; with an engine that is installed. ARGS="-k bridge"
	@$(BIN)/python -m pytest --once-more -n0 tests/gpu tests/engines $(ARGS)

test-hosts: setup ## several virtual hosts: launchers with real ssh and Slurm; real hangs; as root. ARGS="-k slurm"
	@DEVKIT_TEST_HANGS=1 $(BIN)/python -m pytest --once-more -n0 tests/hosts tests/hang/test_ray_hangs.py tests/hang/test_ray_first_error.py tests/hang/test_ray_calls.py $(ARGS)

test-faults: setup ## every fault of docs/faults.md, made for real on virtual hosts; as root. ARGS="-k network"
	@$(BIN)/python -m pytest --once-more -n0 tests/faults $(ARGS)

test-programs: setup ## programs of Ray's libraries under devkit, in a virtual environment on top (120 MB). HEAVY=1: RLlib and verl too
	@BASE=$(VENV) VENV=.venv-programs HEAVY=$(HEAVY) scripts/setup-programs
	@.venv-programs/bin/python -m pytest --once-more -n0 tests/programs $(ARGS)

record-faults: setup ## reproduce every fault of the gallery, and rewrite docs/faults.md
	@rm -f docs/results/faults.jsonl
	@DEVKIT_FAULTS_RECORD=$(CURDIR)/docs/results/faults.jsonl $(BIN)/python -m pytest -n0 tests/faults
	@$(BIN)/python scripts/generate_docs.py

test-sglang: ## SGLang itself on a CPU, in a virtual environment of its own (2.5 GB); ARGS="-k dies"
	@VENV=.venv-sglang scripts/setup-engine sglang
	@.venv-sglang/bin/python -m pytest --once-more -n0 tests/engines $(ARGS)
	@.venv-sglang/bin/devkit smoke --tiny --rollout sglang

test-vllm: ## vLLM itself on a CPU, in a virtual environment of its own (3.5 GB); ARGS="-k dies"
	@VENV=.venv-vllm scripts/setup-engine vllm
	@.venv-vllm/bin/python -m pytest --once-more -n0 tests/engines $(ARGS)
	@.venv-vllm/bin/devkit smoke --tiny --rollout vllm

test-vscode: setup ## the VS Code extension: unit tests, and scenarios in a real editor; ARGS="--slow"
	@vscode/e2e/all $(ARGS)

lint: setup ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## format the code, and fix what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## regenerate what is made from the code: parts of the documentation, the extension's types
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python scripts/generate_vscode_types.py

# The extension, where the wheel and `devkit vscode install` take it from: built when a source of it is newer.
VSIX := devkit/vscode/ray-devkit.vsix
# Not `npm ci`: it refuses a lock file without the binaries of platforms that a mirror of the registry leaves out.
NPM_INSTALL := npm install --no-save --no-audit --no-fund --loglevel=error
VSIX_SOURCES := $(shell find vscode -type d \( -name node_modules -o -name dist -o -name e2e -o -name test \) -prune -o -type f -print)

vscode: $(VSIX) ## build the VS Code extension, once; devkit vscode install puts it into an editor

$(VSIX): $(VSIX_SOURCES)
	@command -v npm >/dev/null || { echo "error: no npm"; echo "hint: install Node 20 or later with npm"; exit 1; } >&2
	@cd vscode && { [ node_modules/.package-lock.json -nt package-lock.json ] || $(NPM_INSTALL); }
	@cd vscode && npm run --silent package
	@cp vscode/dist/ray-devkit.vsix $@

test-latest: ## the quick tests with the newest of every package, in .venv-latest: what changed, and what broke
	@scripts/test-latest $(ARGS)

test-all: setup ## every suite, whatever fails, and a table of them at the end; ARGS="test smoke" for some
	@$(BIN)/python scripts/test_all.py $(ARGS)

bench: setup ## the benchmarks, one after another; some need a GPU, and some a reach that this machine may miss
	@missed=; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || missed="$$missed $$file"; done; \
	[ -z "$$missed" ] || { echo "== not passed:$$missed"; exit 1; }

clean: ## remove caches and builds; .venv stays
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find devkit trainer tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

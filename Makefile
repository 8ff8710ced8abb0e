# make demo   a synthetic capture, reconstructed as your own photos would be, and compared with the truth
# make test   style, then all fast tests
# make bench  every number that docs/performance.md claims
# make lint   style, types and import directions
#
# Each makes .venv and installs into it first, once; again only when what is compiled or required has changed.
# PYTHON=python3.12 chooses the interpreter, PIP_ARGS="--index-url …" where packages come from.

PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
BUILT_FROM := pyproject.toml $(wildcard CMakeLists.txt) $(shell find spatial/kernels/native -name '*.cpp' -o -name '*.h' -o -name '*.cu')
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
MACHINE := OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=2000

.PHONY: demo test slow bench lint clean
.DELETE_ON_ERROR:

demo: .venv/installed
	rm -rf demo
	$(BIN)/spatial synthesize demo/capture
	$(BIN)/spatial reconstruct demo/capture/images --out demo/run quality=draft
	$(BIN)/spatial compare demo/run

test: .venv/installed-dev
	$(BIN)/ruff check --quiet .
	$(MACHINE) $(BIN)/python -m pytest

slow: .venv/installed-dev
	$(MACHINE) $(BIN)/python -m pytest -m "slow or not slow"

bench: .venv/installed-dev
	$(MACHINE) $(BIN)/python benchmarks/run_all.py

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build demo runs

.venv/installed: $(BUILT_FROM) | $(BIN)/python
	@echo "installing into .venv (the first time this downloads PyTorch)"
	$(PIP) -e .
	@touch $@

.venv/installed-dev: $(BUILT_FROM) | $(BIN)/python
	@echo "installing into .venv with what the tests need (the first time this downloads PyTorch)"
	$(PIP) -e ".[dev]"
	@touch $@ .venv/installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "$(PYTHON) is missing or older than 3.10; name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || \
	  { rm -rf .venv; echo "$(PYTHON) cannot make environments; on Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }

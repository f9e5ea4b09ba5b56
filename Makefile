# make search   set up, then run the main job on this machine (without a GPU: on a recorded space)
# make test     set up, then style, types and tests
# make stress   the rare and costly tests, of which CI runs some each day
# Nothing but Python >= 3.11 is needed beforehand (and g++ for the tests): all else goes into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
GPU ?= auto
SHAPE ?= 4096
TIME ?= 60
DB ?= autotune.db
TABLE ?= sgemm_dispatch
JOBS ?= 3
FUZZ ?= 20000
PYTEST_FLAGS ?=
# `make test SHARE=20` runs one of twenty rare tests, too, others each day
SHARE ?=
# Each process of a run, and each command that it starts, would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
# Most of what pip installs is never imported.
export PIP_NO_COMPILE := 1

# The first Python that is new enough and can make virtual environments.
IS_SUITABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3 python
ifndef PYTHON  # looked for when it is needed, once
PYTHON = $(eval PYTHON := $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(IS_SUITABLE)' 2>/dev/null && echo $(p)))))$(PYTHON)
endif
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null | grep -q . && echo yes)
EXTRAS := report-view$(if $(HAS_GPU),-cublas)
COMMA := ,
NEEDS_COMPILER := command -v g++ >/dev/null || { echo "make: the tests run the kernel on the host and need g++ (Debian, Ubuntu: apt install g++)" >&2; exit 3; }

.PHONY: help setup search wheel test stress lint types unit fuzz browser browser-test install-test peers-test ray-test chaos gpu-test clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' Makefile

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	    echo "make: no Python >= 3.11 with the venv and ensurepip modules was found (tried: $(CANDIDATES))." >&2; \
	    echo "      Install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
	    exit 3; \
	fi
	$(PYTHON) -m venv $(VENV)

# One stamp per set of packages, so that `make search` installs no test tools.
$(VENV)/.run-$(EXTRAS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(subst -,$(COMMA),$(EXTRAS))]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run-$(EXTRAS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.gpu: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[sanitizer]'
	@touch $@

# With the sets above, at once: each installation builds the project. axe is taken out of a package for another
# browser's driver: without what that one needs.
$(VENV)/.browser: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(subst -,$(COMMA),$(EXTRAS)),dev,browser]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'axe-playwright-python==0.1.8'
	@touch $(VENV)/.run-$(EXTRAS) $(VENV)/.dev $@

setup: $(VENV)/.run-$(EXTRAS)  ## make .venv and install autotune into it

search: setup  ## search the best kernel for SHAPE on GPU for TIME seconds, then export it to TABLE/
	$(BIN)/autotune search --gpu $(GPU) --shape $(SHAPE) --seconds $(TIME) --db $(DB)
	$(BIN)/autotune export-table --db $(DB) --out $(TABLE)
	@command -v autotune >/dev/null || echo "autotune is in $(BIN): . $(BIN)/activate" >&2

$(VENV)/.release: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	@touch $@

# Linked for glibc 2.17, so that every Linux with a Python that we support can install it.
wheel: $(VENV)/.release  ## dist/: the wheel with the core in it, and the source distribution
	rm -rf dist
	CC="'$(abspath $(BIN))/python' -m ziglang cc -target $$(uname -m)-linux-gnu.2.17 -s" $(BIN)/python -m build
	@ls dist/*-manylinux_2_17_*.whl

# All tests share the processes, those that wait longest first; one process more than CI has cores, as many tests wait for others.
TESTS := tests/install tests/browser tests/cli tests/compile tests/emulated tests/unit tests/gpu
# Python's development mode shows files left open and the like, and costs nothing without its checks of memory.
DEVELOPING := PYTHONDEVMODE=1 PYTHONMALLOC=default
RUN_TESTS = $(DEVELOPING) $(BIN)/python -m pytest $(TESTS) -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)

test: $(VENV)/.browser lint types browser  ## style, types, tests; needs no GPU
	@$(NEEDS_COMPILER)
	$(RUN_TESTS) $(if $(SHARE),-m "not gpu" --share $(SHARE),-m "not gpu and not stress")

stress: $(VENV)/.browser browser  ## the tests that `make test` leaves out: rare faults, and more cases of what it tests
	@$(NEEDS_COMPILER)
	$(RUN_TESTS) -m "stress and not gpu"

lint: $(VENV)/.dev  ## style
	$(BIN)/ruff check .

types: $(VENV)/.dev  ## static types
	$(BIN)/mypy & { $(BIN)/mypy --config-file tests/gpu/mypy.ini tests/gpu && wait $$!; }

unit: $(VENV)/.dev  ## those of `make test` that need neither a browser nor an installed wheel
	@$(NEEDS_COMPILER)
	$(BIN)/python -m pytest -m "not gpu and not stress" -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)

fuzz: $(VENV)/.dev  ## damage suites, recordings, databases, tables and cubins at random, each FUZZ times
	AUTOTUNE_FUZZ=$(FUZZ) $(BIN)/python -m pytest --timeout 0 -n $(JOBS) $(PYTEST_FLAGS) \
	    tests/unit/test_input_fuzzed.py tests/unit/test_store_damage.py tests/unit/test_table_fuzzed.py

# Chromium is no Python package. As root on Debian it is installed; elsewhere the tests say what to install, and are skipped.
browser:
	@command -v chromedriver >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "make: installing Chromium and its driver, for tests that look at pages"; \
	    { apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver; } >/dev/null \
	        || echo "make: that failed; these tests are skipped" >&2; \
	fi

browser-test: browser $(VENV)/.browser  ## look at the pages in Chromium: without it these tests are skipped
	$(BIN)/python -m pytest -m browser tests/browser -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)

install-test: $(VENV)/.dev  ## build the wheel, install it in a fresh environment, run README's commands
	$(BIN)/python -m pytest tests/install -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)

# Half a gigabyte of packages, so not within `test`: run it when a format of others changes, here or there.
peers-test: $(VENV)/.dev  ## Kernel Tuner and autotuning-methodology themselves, both ways
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[peers]'
	$(BIN)/python -m pytest tests/unit/test_kernel_tuner_peers.py $(PYTEST_FLAGS)

# Two hundred megabytes, and a minute: not within `test`, where these tests are skipped.
ray-test: $(VENV)/.dev  ## a search on a real Ray cluster of three nodes on this machine, and the loss of one
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cluster]'
	$(BIN)/python -m pytest tests/unit/test_ray_cluster.py $(PYTEST_FLAGS)

# Five to fifteen minutes, as root: PostgreSQL and iproute2 must be installed.
chaos: $(VENV)/.dev  ## a server, workers and a Ray cluster killed, suspended, cut off and misled by clocks during a hundred requests
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[cluster,service]'
	$(BIN)/python -m pytest tests/chaos -s $(PYTEST_FLAGS)

gpu-test: $(VENV)/.gpu  ## all tests, and a GPU must be there
	$(BIN)/python -m pytest --require-gpu -m "not alone" -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)
	$(BIN)/python -m pytest --require-gpu -m alone tests/gpu $(PYTEST_FLAGS)

clean:  ## remove what was built, never a database or an exported table
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

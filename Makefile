# Every target sets up $(VENV) by itself, from nothing but python3 and make; once that is done, a call starts at once.
#
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu    take torch from another index (here: the small CPU build)
#   make test PYTHON=python3.12 VENV=/elsewhere/venv              another interpreter, another place
#   make test ARGS="-k spmm -x"                                   more arguments for the command that the target runs
#   make test WORKERS=8                                           more processes (each takes up to 4 GiB)

PYTHON      ?= python3
VENV        ?= .venv
TORCH_INDEX ?=
ARGS        ?=
WORKERS     ?= 2

PY    := $(VENV)/bin/python
PIP   := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.project-installed
# Processes share the cores, so that threads which wait must sleep and not spin.
PYTEST := OMP_WAIT_POLICY=passive $(PY) -m pytest -n $(WORKERS) --benchmark-skip
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup reproduce test test-all bench tune selector aot gpu-check lint clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## the virtual environment alone

reproduce: $(READY) ## train on real graphs, beside the peers, and write results/report.html
	$(PY) -m braidwork.experiments.reproduce $(ARGS)

test: $(READY) ## what CI runs: all but the long sweeps; over 90% of the lines of kernels/
	$(PYTEST) -m "not slow" --cov --cov-report=term --cov-fail-under=90 $(ARGS)

test-all: $(READY) ## every test, the long sweeps too
	$(PYTEST) --cov --cov-report=term --cov-fail-under=90 $(ARGS)

bench: $(READY) ## speed against the peers, interleaved in one process (pytest-benchmark)
	$(PY) -m pytest tests/bench --benchmark-only $(ARGS)

tune: $(READY) ## measure the tiles of the sparse formats on this machine (a few minutes)
	$(PY) -m braidwork.experiments.tune $(ARGS)

selector: $(READY) ## train the format selector on this machine (half an hour; stop and go on as you like)
	$(PY) -m braidwork.experiments.selector $(ARGS)

aot: $(READY) ## compile every kernel for sm_80, sm_90, sm_100 and gfx942 and print what each needs
	$(PY) -m braidwork.kernels.aot $(ARGS)

# The machine's own Python, with its own torch and triton: the pinned environment has no build for its GPU.
gpu-check: ## where a GPU is: every kernel against fp64, then a short table of ratios; installs the package itself alone
	$(PYTHON) -m pip install -q --no-deps --no-build-isolation .
	$(PYTHON) -m braidwork.kernels.gpu_check $(ARGS)

# ---------------------------------------------------------------------------------------------------------------------
# The pinned environment. Two stamps: the packages (follows constraints.txt), then the project (follows pyproject.toml).

# torch goes first, with whatever its build needs and without our triton, since a CUDA build insists on an older one.
# Then the complete list, without a resolver: what it names is what is there.
$(VENV)/.packages-installed: constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit((3, 11) > v or v > (3, 14))' || { \
	  echo "make: the pinned packages need Python 3.11 to 3.14, and $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
	       "name another with make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "make: could not create $(VENV); on Debian and Ubuntu 'apt install python3-venv' brings what is missing"; exit 1; }
	$(PIP) install -q $$(grep -E '^(pip|setuptools)==' constraints.txt)
	grep -v '^triton==' constraints.txt > $(VENV)/constraints-torch.txt
	$(PIP) install -c $(VENV)/constraints-torch.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
	  $$(grep '^torch==' constraints.txt)
	$(PIP) install -q --no-deps --no-build-isolation -r constraints.txt
	@touch $@

$(READY): pyproject.toml $(VENV)/.packages-installed
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

# ---------------------------------------------------------------------------------------------------------------------

# Type checkers do not see setuptools' package-dir, so they get a tree in which folders lie where their names say.
lint: $(READY) ## ruff and mypy
	$(PY) -m ruff check .
	@rm -rf $(VENV)/links && mkdir -p $(VENV)/links/braidwork
	@for folder in conf experiments kernels models selector; do ln -s "$(CURDIR)/$$folder" $(VENV)/links/braidwork/$$folder; done
	MYPYPATH=$(VENV)/links $(PY) -m mypy -p braidwork

clean: ## remove caches and build products (not .venv, not results)
	rm -rf build dist *.egg-info .coverage .coverage.* htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find conf experiments kernels models selector tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f $(READY)

distclean: clean ## clean, and remove the virtual environment too
	rm -rf $(VENV)

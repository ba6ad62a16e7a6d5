# `make demo` and `make test` need nothing but git, make and Python 3.11 or newer: each makes its own environment
# from the committed lock files.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV_LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-header --no-annotate
# Three processes, also on two cores: tests wait for programs that they start, stop and kill.
PYTEST := $(BIN)/python -m pytest --typecheck -n 3 --dist loadfile
# The lock files name every package, so nothing has to be resolved. Python compiles the modules that are imported.
INSTALL := $(if $(shell command -v uv),uv pip install --python $(BIN)/python --quiet --no-deps,\
  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile)

# Python stores the modules that it compiled, for the hundreds of processes that tests start: otherwise each process
# compiles them again, 3 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo evidence accelerator check test campaign lint ruff types core floor docs dist notebooks format lock clean

help:
	@echo "make demo    build the installed Python packages' texts into a dataset, train on it, draw the report"
	@echo "make evidence   train 90 small models on those texts in three orders, and compare them: a quarter of an hour"
	@echo "make accelerator   on a machine with a GPU or a TPU: tests and benchmarks with the Python of the machine, 10 minutes"
	@echo "make check   lint, types and the tests of the contracts: a minute, while you work"
	@echo "make test    lint, types and the tests that protect a change: a quarter of an hour, before you finish"
	@echo "make campaign   the other tests: whole programs, kills, other libraries, documentation: a quarter of an hour"
	@echo "make floor   the tests of the contracts with the oldest versions of the libraries that are allowed"
	@echo "make dist    build the source archive and the wheel of a release in dist/"
	@echo "make docs    build the documentation's site in docs/_build"
	@echo "make lint    lint and check types only;  make format  reformat;  make lock  renew the lock files"
	@echo "make notebooks   run the notebooks' text forms and renew the .ipynb files beside them"

demo: $(VENV)/core.stamp
	$(BIN)/jax-diversity demo

evidence: $(VENV)/core.stamp
	$(BIN)/python -m evidence run configs/experiments/python_environment.yaml
	$(BIN)/python -m evidence show configs/experiments/python_environment.yaml --page lab/pages

# Uses the libraries of PYTHON: on such machines JAX is installed for the device, and often there is no network.
accelerator:
	$(PYTHON) benchmarks/accelerator.py --write

check: $(VENV)/test.stamp
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint core

test: lint
	$(PYTEST) -m "not campaign"

campaign: $(VENV)/dev.stamp
	$(PYTEST) -m campaign

lint: ruff types

ruff: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.stamp
	$(BIN)/basedpyright --warnings --pythonpath $(BIN)/python

# In one process, because `make check` checks the types beside it; only the files with such tests are imported.
core: $(VENV)/test.stamp
	$(BIN)/python -m pytest --typecheck -m "core and not campaign" $$(grep -rl --include='*.py' 'mark\.core' tests)

# The oldest versions that pyproject.toml allows, as in an older notebook service: the tests of the contracts. They run the
# programs of users, without the options that tests/conftest.py gives XLA.
floor: requirements/floor.txt
	$(PYTHON) -m venv $(VENV)-floor
	$(VENV)-floor/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/floor.txt -e '.[preparation,sentencepiece]' beartype hypothesis pytest ruff zstandard
	XLA_FLAGS= $(VENV)-floor/bin/python -m pytest --typecheck -m core --ignore tests/integration/test_notebooks.py

docs: $(VENV)/dev.stamp
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

# What is uploaded to a package index: dist/*.tar.gz and dist/*.whl.
dist:
	rm -rf dist
	$(PYTHON) -m venv $(VENV)-dist
	$(VENV)-dist/bin/python -m pip install --quiet --disable-pip-version-check "hatchling>=1.27"
	$(VENV)-dist/bin/python -m hatchling build

format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

notebooks: $(VENV)/dev.stamp
	$(BIN)/python notebooks/renew.py

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Expected Python 3.11 or newer, found $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# core.lock: the package; test.lock: `make check` and `make test`; dev.lock: everything. Each includes the one before.
$(VENV)/%.stamp: requirements/%.lock pyproject.toml | $(VENV)/pyvenv.cfg
	$(INSTALL) -r $< -e .
	@touch $@

lock:
	$(UV_LOCK) -o requirements/core.lock
	$(UV_LOCK) --extra test -c requirements/core.lock -o requirements/test.lock
	$(UV_LOCK) --extra dev -c requirements/test.lock -o requirements/dev.lock

clean:
	rm -rf $(VENV) demo .pytest_cache .ruff_cache .hypothesis docs/_build

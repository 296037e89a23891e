# make run serves; make setup installs all the rest; make test, lint, demo and bench use it.
# A stamp in .venv is as new as the lock file that was installed: a second run installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: run setup test kill-test lint format demo bench profile chaos openapi settings lock clean
.DELETE_ON_ERROR:

run: $(VENV)/service.stamp $(BIN)/blocklist
	@$(BIN)/python -m app migrate
	@exec $(BIN)/python -m app

setup: $(VENV)/dev.stamp $(BIN)/blocklist

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

# 200 times kill -9 under load; `ARGS="--kills 20"` for less.
kill-test: $(VENV)/dev.stamp
	$(BIN)/python -m tests.crash $(ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(VENV)/dev.stamp
	@$(BIN)/python -m demo

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks $(ARGS)

bench-%: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks $* $(ARGS)

# Where the interpreter's time goes on the hot paths, by py-spy.
profile: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.profile

# Half an hour of faults; make test has a short form.
chaos: $(VENV)/dev.stamp
	$(BIN)/python -m tests.chaos $(ARGS)

openapi: $(VENV)/service.stamp
	$(BIN)/python -m app openapi > openapi/blocklist.json

settings: $(VENV)/service.stamp
	$(BIN)/python -m app settings --into docs/settings.md

# Newer versions of everything, in both lock files.
lock: $(VENV)/dev.stamp
	$(BIN)/python -m requirements

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blocklist needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# The command, from this checkout: a wheel brings its own.
$(BIN)/blocklist: Makefile | $(BIN)/python
	@printf '%s\n' '#!/bin/sh' 'export PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}"' \
		'exec "$(abspath $(BIN))/python" -P -m blocklist.cli "$$@"' > $@
	@chmod +x $@

$(VENV)/service.stamp: requirements/service.txt | $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements/service.txt
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/service.txt | $(BIN)/python
	$(PIP) install --quiet --require-hashes -r requirements/dev.txt
	@touch $(VENV)/service.stamp $@

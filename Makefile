PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check campaign kernels

demo: .venv/ready
	$(BIN)/edbl demo

test: check
	$(BIN)/pytest -n 2

campaign: .venv/tested  # hours; goes on where it was stopped
	$(BIN)/python -m tests.campaign

kernels: .venv/tested  # half an hour: all kernels for all architectures, without a GPU
	$(BIN)/python -W ignore -m tests.kernels

check: .venv/tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/tested: .venv/ready
	$(INSTALL) -e '.[dev]'
	touch $@

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check

demo: .venv/ready
	$(BIN)/edbl demo

test: check
	$(BIN)/pytest -n 2

check: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

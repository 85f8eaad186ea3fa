PYTHON ?= python3
BIN := .venv/bin
BROWSER := command -v chromium >/dev/null && command -v chromedriver >/dev/null
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow browser check campaign audit kernels

demo: .venv/ready
	$(BIN)/edbl demo

test: check
	$(BIN)/pytest -n 2
	@$(BROWSER) || echo 'Left out: tests/test_page.py, for there is no chromium with chromedriver. As root, make browser installs them.'

browser:  # what tests/test_page.py drives; where it is missing this needs Debian and root
	$(BROWSER) || (apt-get update -qq && apt-get install -qq --no-install-recommends chromium chromium-driver)

slow: .venv/tested  # the tests that `make test` leaves out for their time
	$(BIN)/pytest -n 2 -m slow

campaign: .venv/tested  # hours; goes on where it was stopped
	$(BIN)/python -m tests.campaign

audit: .venv-audit/ready  # needs a network: are flaws known of the pinned versions?
	.venv-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

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

.venv-audit/ready:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	touch $@

PYTHON ?= python3
BIN := .venv/bin
BROWSER := command -v chromium >/dev/null && command -v chromedriver >/dev/null
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow browser check prose site wheel dist audit workflows campaign kernels

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

audit: .venv-release/ready  # needs a network: are flaws known of the pinned versions? One that cannot be looked up is an error
	.venv-release/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

workflows: .venv-release/ready
	.venv-release/bin/zizmor --offline .github

dist: .venv-release/ready  # a wheel, a source archive, and a bill of what the wheel is tested with
	rm -rf dist build
	.venv-release/bin/python -m build
	.venv-release/bin/twine check --strict dist/*
	mkdir -p build
	.venv-release/bin/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml --output-file build/materials.json

wheel: .venv/tested  # the wheel in an empty environment outside the repository: the demo, a recipe, the served page
	$(BIN)/python -m tests.wheel

kernels: .venv/tested  # half an hour: all kernels for all architectures, without a GPU
	$(BIN)/python -W ignore -m tests.kernels

prose: .venv/tested  # idioms and other words that docs/prose.toml refuses
	$(BIN)/python -m tests.prose

site: .venv/tested  # the documentation, searchable, in build/site
	$(BIN)/sphinx-build -W --keep-going -q -d build/doctrees docs build/site

check: .venv/tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tests.prose

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/tested: .venv/ready
	$(INSTALL) -e '.[dev]'
	touch $@

.venv-release/ready:
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet --disable-pip-version-check build cyclonedx-bom pip-audit twine zizmor
	touch $@

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-console test-integrations test-ray check lint coverage docs console wheel clean

demo: $(VENV)/.demo
	@$(BIN)/mnemorank demo

# Everything, the slow tests included.
test: $(VENV)/.dev $(VENV)/.browser
	$(BIN)/python -m pytest -n 2

# The adapters against the real frameworks, each in an environment of its own: minutes of downloads the first time.
# Only some: make test-integrations ONLY="langchain mem0"
test-integrations:
	$(PYTHON) integration_tests/run.py $(ONLY)

# Ray on clusters of several nodes on this machine, with nodes that are killed.
test-ray:
	$(PYTHON) integration_tests/run.py ray

# The console in a real browser. Run it before landing a change of the console, with nothing else running.
test-console: $(VENV)/.dev $(VENV)/.browser
	MNEMORANK_BROWSER_TESTS=1 $(BIN)/python -m pytest tests/console

# The fast lane while you work: lint, types and all tests that are not marked slow.
check: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

coverage: $(VENV)/.dev $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term:skip-covered

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Build the page of the console, which is committed, and fail if that changes it: the build must be that of the source.
console:
	cd console && npm ci --no-fund --no-audit && npm run build
	git diff --exit-code --stat src/mnemorank/assets/console

wheel: $(BIN)/python
	$(PIP) build
	$(BIN)/python -m build --wheel --outdir dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(PIP) -e .
	@touch $@

# torch first and pinned: an unpinned torch brings gigabytes of CUDA libraries.
$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(PIP) -e '.[docs]'
	@touch $@

# The tests of the console and of the benchmark report need Chromium, and some of them axe-core; they are skipped where
# these cannot be installed.
$(VENV)/.browser: $(BIN)/python
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
	  || timeout 240 sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium' >/dev/null 2>&1 \
	  || echo "Chromium could not be installed: the browser tests will be skipped"
	@[ -d console/node_modules ] || ! command -v npm >/dev/null \
	  || (cd console && timeout 120 npm ci --no-fund --no-audit >/dev/null 2>&1) \
	  || echo "axe-core could not be installed: the accessibility tests will be skipped"
	@touch $@

clean:
	rm -rf $(VENV) .integrations build dist site

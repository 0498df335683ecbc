PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	@$(BIN)/mnemorank demo

test: $(VENV)/.dev $(VENV)/.browser
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# torch first and pinned: an unpinned torch, asked for by another package, brings gigabytes of CUDA.
$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.demo

# The report is tested in Chromium where it is or can be had; that test is skipped elsewhere.
$(VENV)/.browser: $(BIN)/python
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null \
	  || timeout 240 sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium' >/dev/null 2>&1 \
	  || echo "Chromium cannot be installed: the browser test will be skipped"
	@touch $@

clean:
	rm -rf $(VENV) build dist

# Two commands do everything: `make demo` and `make test`. Each makes its own virtual environment when there is none.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint clean

demo: $(VENV)/.demo
	$(BIN)/python -m quadlin.paper.demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# A stamp per set of dependencies: installed again when they or the kernel that is compiled change.
INSTALLED := pyproject.toml hatch_build.py $(wildcard src/quadlin/core/_passes*.[ch])

$(VENV)/.demo: $(INSTALLED) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[all]"
	touch $@

$(VENV)/.dev: $(INSTALLED) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist demo

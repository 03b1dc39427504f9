# Two commands do everything: `make demo` and `make test`. Each makes its own virtual environment when there is none.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The lower bounds of the core dependencies, as pyproject.toml names them.
OLDEST := $(shell sed -n '/^dependencies/,/^]/s/^ *"\(.*\)>=\(.*\)",$$/\1==\2.*/p' pyproject.toml)

.PHONY: demo test quick test-oldest lint bench docs kernel release environments clean

demo: $(VENV)/.demo
	$(BIN)/quadlin demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal

# The linters and the most telling cases of the contract: for every save.
quick: lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m smoke tests/contract

# The estimators with the oldest versions of numpy, scipy, scikit-learn and the like that are supported. scikit-learn 1.6 holds
# array-api-strict to the standard of 2023, which has no scalars in where(); real arrays have them.
# Its checks are a generator, of which newer versions of pytest warn.
test-oldest: $(VENV)/.dev $(VENV)-oldest/.dev
	$(VENV)-oldest/bin/python -m pytest -q -k "not strict" -m smoke -W ignore::pytest.PytestRemovedIn10Warning tests/contract

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What a fit costs, in reads of the table and relative to scikit-learn: a quarter of a minute.
bench: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/passes.py --only 30kd

# The documentation site in build/docs, with the examples of the gallery run anew where they changed; warnings are errors.
docs: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs

# The compiled kernel of a checkout, again.
kernel:
	cmake -S kernel -B build/kernel
	cmake --build build/kernel

# Everything short of uploading, in environments of its own: PYTHONS="python3.11 python3.13" names who installs the wheel.
release:
	PYTHON=$(PYTHON) .ci/release

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# A stamp per environment: installed again when dependencies or the kernel that is compiled change.
INSTALLED := pyproject.toml kernel/CMakeLists.txt $(wildcard src/quadlin/core/_passes*.[ch])
# Modules are compiled when they are first imported: most of them never are.
INSTALL := -m pip install --quiet --no-compile --editable

$(VENV)/.demo: $(INSTALLED) | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) ".[all]"
	touch $@

$(VENV)/.dev: $(INSTALLED) | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) ".[dev,docs]"
	touch $@ $(VENV)/.demo

# Without a kernel of its own: it stands in src/, compiled for the other environment.
$(VENV)-oldest/.dev: $(INSTALLED)
	$(PYTHON) -m venv $(VENV)-oldest
	QUADLIN_PURE=1 $(VENV)-oldest/bin/python $(INSTALL) ".[test]" $(patsubst %,"%",$(OLDEST)) "pandas==2.2.*"
	touch $@

# All environments, so that nothing is installed while tests run.
environments: $(VENV)/.dev $(VENV)-oldest/.dev

clean:
	rm -rf $(VENV) $(VENV)-oldest build dist demo docs/gallery docs/reference/generated

# Two commands do everything: `make demo` and `make test`. Both set themselves up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One torch thread per process: two collapse on a busy two-core machine.
export OMP_NUM_THREADS = 1
ifndef SEED
SEED := $(shell date +%s)
endif

.PHONY: setup demo test test-slow docs-tables format clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report,dev]'
	touch $@

demo: setup
	$(BIN)/lossalign compare digits-lt --seeds 4 --out runs/demo --overwrite --final

test: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2

# The slow tests, then the fast ones in random order and on fresh examples; `make test-slow SEED=N` repeats them.
test-slow: setup
	$(BIN)/pytest -n 2 -m slow
	@echo "SEED=$(SEED) of the order and of the examples"
	HYPOTHESIS_PROFILE=fresh $(BIN)/pytest -n 2 --hypothesis-seed=$(SEED) \
		-p randomly --randomly-seed=$(SEED) --randomly-dont-reset-seed

# Every table and command of the docs and the README, from results/*.json; `make test` checks that they are current.
docs-tables: setup
	$(BIN)/python docs/make_tables.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

# make demo   train a small gated net on digits and print a table
# make test   run lint, type checks and tests
# make integrations  run the tests of Lightning, transformers, Accelerate and of the examples
# make fuzz   compact 10,000 random networks and compare outputs (COUNT=..., SEED=..., RECORD=file to go on with)
# make architectures  compact many half-dead networks, compare, and write the table in docs/compaction.md (PROCESSES=...)
# make paper  run what is missing of the paper's tables, small, and write docs/paper.md (DATA=folder of the data)
# make bench  run the benchmarks and write benchmarks/results
# make speed  time many networks before and after, for hours, and write the table in docs/speed.md
# make tables  write tables and pictures of README and docs from the result files
# make docs   build the site into docs/_build
# make dist   build the packages and check them
# make clean  remove what these commands have made, but not their results
# Each command first sets up .venv with pinned versions, and reuses it until pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo

export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types pytest integrations fuzz architectures format paper bench speed tables docs dist clean
.DEFAULT_GOAL := test

$(READY): extras := dev
$(DEMO_READY): extras := demo
$(READY) $(DEMO_READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; choose one with: make PYTHON=python3.12"; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --editable ".[$(extras)]"
	@touch $@

# what the demo needs is a small part of what the tests need
demo: $(if $(wildcard $(READY)),$(READY),$(DEMO_READY))
	@$(BIN)/diffsparse demo

test: lint types pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

HEAVY := src/diffsparse/integrations tests/integrations tests/examples
pytest: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 $(HEAVY:%=--ignore %)

integrations: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadscope $(HEAVY)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COUNT ?= 10000
SEED ?= 0
PROCESSES ?= 2
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.compaction.fuzz --count $(COUNT) --seed $(SEED) --processes $(PROCESSES) $(if $(RECORD),--record $(RECORD))

architectures: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.compaction.architectures --write --processes $(PROCESSES)

SIZE ?= small
paper: $(READY)
	$(BIN)/diffsparse paper $(TABLES) --size $(SIZE) --jobs $(PROCESSES) $(if $(DATA),--data-root $(DATA))

bench: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python benchmarks/gate_overhead.py
	$(BIN)/python benchmarks/compact_speed.py
	$(BIN)/python benchmarks/train_throughput.py
	$(BIN)/python benchmarks/wiring_speed.py
	$(BIN)/python benchmarks/graph_speed.py
	$(BIN)/python benchmarks/report_size.py
	$(BIN)/python benchmarks/import_time.py

speed: $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python benchmarks/inference_speed.py
	$(BIN)/python benchmarks/inference_speed.py --table

tables: $(READY)
	$(BIN)/python docs/site/tables.py
	$(BIN)/python docs/site/figures.py

docs: $(READY)
	$(BIN)/python docs/site/build.py

dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build dist

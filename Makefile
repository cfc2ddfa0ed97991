# Every target makes the virtual environment first, from the lock alone; `PYTHON=python3.12 make test` chooses another Python.
PYTHON ?= python3
# How many processes test, each with servers of its own: each keeps 0.4 of a core busy. 0 = one, and its output at once.
JOBS ?= 6
VENV := .venv
BIN := $(VENV)/bin
# A Python that is chosen is looked at every time, since the environment may be of another version.
CHOSEN := $(filter command environment,$(firstword $(origin PYTHON)))
VERSION := import sys; print(sys.version_info[:2])
STAMP := $(VENV)/.made-from-lock
SOURCES := framework events services projections tests benchmarks

export PYTHONPATH := $(CURDIR)
# Without bytecode each of the processes that test compiles all tests again, and every child the framework.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test faults simulate check docs format bench clean FORCE

help:
	@echo "make demo    load grocery baskets, kill workers, rebuild views, prove the totals (FULL=1: a whole year, ONCE=1: stop the servers after)"
	@echo "make test    every test, on servers it starts itself (ARGS='-k name' chooses; JOBS=6 processes, 0 = in this one)"
	@echo "make faults  the campaign: long kills, failovers and waits, apart from make test (ARGS and JOBS as there)"
	@echo "make simulate  the write path under SEEDS=10000 simulated schedules, and every planted bug until it is found"
	@echo "make check   format, lint, types, import rules, words"
	@echo "make docs    the pages and the public API as a site in build/site"
	@echo "make bench   measure, and write benchmarks/results/latest.json"
	@echo "make clean   remove everything that was made here"

$(STAMP): requirements.lock pyproject.toml $(if $(CHOSEN),FORCE)
	@if ! cmp -s requirements.lock $(VENV)/.lock 2>/dev/null || $(if $(CHOSEN),! $(BIN)/python -c '$(VERSION)' | grep -qxF "$$($(PYTHON) -c '$(VERSION)')",false); then \
	  echo "making $(VENV) from requirements.lock (once per change of it or of Python; a few hundred MB)"; \
	  $(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 13) else "Leftfold needs Python 3.11 or 3.12, and this is " + sys.version.split()[0] + "; name one with PYTHON=python3.11 make ...")' && \
	  $(PYTHON) -m venv --clear $(VENV) && \
	  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	  cp requirements.lock $(VENV)/.lock; \
	fi
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@FULL=$(FULL) ONCE=$(ONCE) $(BIN)/python -m services.baskets.demo

test: $(STAMP)
	@$(BIN)/python -c 'from leftfold.local.jars import main; main()'
	@$(BIN)/python -m tests.http.console.accessibility
	@$(BIN)/pytest -n $(JOBS) --max-worker-restart 0 --dist loadscope --no-loadscope-reorder $(ARGS)

faults: $(STAMP)
	@$(BIN)/python -c 'from leftfold.local.jars import main; main()'
	@$(BIN)/python -m tests.http.console.accessibility
	@$(BIN)/pytest --faults -n $(JOBS) --max-worker-restart 0 --dist loadscope --no-loadscope-reorder $(ARGS)

simulate: $(STAMP)
	@$(BIN)/python -m tests.simulation.campaign --seeds $(or $(SEEDS),10000)

check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pyright --warnings --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.project.glossary

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "build/site/index.html"

format: $(STAMP)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

clean:
	@if [ -x $(BIN)/leftfold ] && [ -d .leftfold ]; then $(BIN)/leftfold down || true; fi
	rm -rf $(VENV) .leftfold .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache artifacts build dist \
	  spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

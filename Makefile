# Everything a person or CI runs. `make` alone lists it.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The stages of dvc.yaml call papermill and puma by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
export DVC_NO_ANALYTICS := 1

.DEFAULT_GOAL := help
.PHONY: help install demo repro compare ui lab test test-all docs bench check format lock clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt notebooks/jupyter_server_config.py
	@$(PYTHON) -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' || { echo \
	  "$(PYTHON) must be Python 3.11 or newer with venv and ensurepip (on Debian: apt install" \
	  "python3-venv); name another one: make install PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "pip>=23.1" # older ones resolve this for ever
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@install -D -m 644 notebooks/jupyter_server_config.py .venv/etc/jupyter/jupyter_server_config.py
	@touch $@

install: $(READY) ## make the virtual environment .venv and install everything into it
	@git rev-parse --git-dir > /dev/null 2>&1 || $(BIN)/dvc config --local core.no_scm true

# As many datasets at once as there are cores: DVC runs stages one after the other, but several DVCs
# may run, on stages that share no output. What all datasets share, register, comes in between.
demo: install ## train, register, remove marked people's rows, audit, and compare
	@set -e; names="$$(dvc stage list --name-only | sed -n 's/^prepare@//p')"; \
	  each() { xargs -P "$$(getconf _NPROCESSORS_ONLN)" -I{} dvc --wait-for-lock repro "$$@" <<< "$$names"; }; \
	  each --glob 'audit@{}-*'; dvc repro register; each --single-item 'compare@{}'
	@$(BIN)/puma compare
	@echo
	@echo "Look at the versions side by side:  make ui   then open  http://127.0.0.1:5000/#/models?workflowType=machine_learning"

repro: install ## run the pipeline: only what changed since the last time
	dvc repro

compare: install ## print the comparison of the registered versions
	@$(BIN)/puma compare

ui: install ## start the MLflow UI on this project's registry
	$(BIN)/puma ui

lab: install ## open JupyterLab on notebooks/
	$(BIN)/jupyter lab --notebook-dir notebooks

test: install ## run the default tests: about three minutes
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --no-loadscope-reorder

test-all: install ## run every test: servers, kills, whole pipelines, too
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

docs: install ## write the manual as a site to site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: install ## compare with pyDVL, captum, kronfluence, dattri and curvlinops
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet "pip>=23.1"
	.venv-bench/bin/python -m pip install --quiet torch "pyDVL[influence]" dask distributed captum \
	  kronfluence dattri curvlinops-for-pytorch
	$(BIN)/python -m benchmarks peers --python $(CURDIR)/.venv-bench/bin/python

check: install ## formatting, lint, types, import layers, clean notebooks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/nbstripout --verify notebooks/*.ipynb notebooks/paper/*.ipynb

format: install ## format the code and strip the notebooks' outputs
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/nbstripout notebooks/*.ipynb notebooks/paper/*.ipynb

lock: ## write constraints.txt from what is installed in .venv
	$(BIN)/python -m pip freeze --exclude-editable | grep -viE '^(nvidia|cuda|triton)' > constraints.txt

clean: ## delete the environment and everything that `dvc repro` made
	rm -rf .venv artifacts lineage metrics plots reports mlflow.db
	find mlruns -mindepth 1 ! -name .gitignore -delete

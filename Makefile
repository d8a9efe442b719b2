# `make demo` and `make test` set up everything they need in .venv; neither needs root.
PYTHON ?= python3
BIN := .venv/bin
VECTORS ?=
INPUTS ?= 1000000
SEED ?= 20261120
MINUTES ?= 10
SIZE ?= 2
AUDIT ?=
KUBERNETES ?=
TARGETS ?=
DIST ?= dist
CHECKSUMS := cd $(DIST) && find * -type f ! -name SHA256SUMS -print0 | LC_ALL=C sort -z \
    | xargs -0 sha256sum >SHA256SUMS
SHELL := /bin/bash

.PHONY: help setup plugin prometheus browser helm demo test lint types nightly explore guest guest-kubelet bench conformance docs \
    changelog load fuzz dependencies wheel deb man image checksums audit clean site

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup: ## make the virtual environment .venv from the lock file
	@$(PYTHON) deploy/development/make_venv.py

plugin: setup ## install the packages of a device plugin in JavaScript that the tests run; needs npm
	@$(BIN)/python -m tests.fakes.node_plugin

prometheus: setup ## unpack Prometheus and promtool from Debian's package for the tests of alerts and dashboards
	@$(BIN)/python -m tests.prometheus

browser: setup ## install Chromium, which the tests of the dashboard drive; needs root on Debian
	@$(BIN)/python -m tests.browser

helm: setup ## unpack Helm and kubectl, which the tests of deploy/kubernetes render with
	@$(BIN)/python -m tests.helm

demo: setup ## run the real agent against an emulated two-socket host
	@$(BIN)/python -m tests.demo

test: setup ## run every test that needs neither root nor a NUMA machine
	@$(BIN)/pytest -q -n auto --dist loadfile

lint: setup ## check style, formatting, spelling, and imports between folders
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/codespell
	@$(BIN)/lint-imports --no-logo

types: setup ## check types
	@$(BIN)/mypy

nightly: setup ## what is long, random or measured: its tests and guests, explore with three requests, fuzz, load, bench; some hours
	@$(BIN)/pytest -q -n auto --dist loadfile -m nightly
	@NUMAWARDEN_SEQUENCES=20000 NUMAWARDEN_FAULTS=all NUMAWARDEN_STORIES=4000 $(BIN)/pytest -q -n auto --dist loadfile \
	    -m "nightly or not nightly" tests/agent/managers/test_invariants.py tests/agent/server/test_faults.py \
	    tests/agent/server/test_awaits.py tests/agent/server/test_awaits_beside.py tests/agent/server/test_never_two_pods.py
	@$(BIN)/python -m tests.guest --nightly
	@$(BIN)/python -m tests.guest --suite testing cgroup-contract isolation partitions run kep-systemd huge-pages
	@$(BIN)/python -m tests.guest --suite bookworm affinities
	@$(BIN)/python -m tests.exploration 3 3600
	@$(MAKE) --no-print-directory fuzz load bench

explore: setup ## try every order of requests, answers and one disturbance [SIZE=2, SECONDS=]
	@$(BIN)/python -m tests.exploration $(SIZE) $(SECONDS)

guest: setup ## boot NUMA guests in QEMU and run the scenarios on real cgroups
	@$(BIN)/python -m tests.guest

guest-kubelet: helm ## run the scenarios beside a real kubelet [KUBERNETES=DIR of its programs]; not part of CI
	@$(BIN)/python -m tests.guest --kubernetes "$(KUBERNETES)"

bench: setup ## measure; writes bench.json and bench-rest.json
	@$(BIN)/python -m tests.bench

conformance: setup ## compare decisions with the recorded ones [VECTORS=DIR]
	@$(BIN)/python -m tests.conformance $(if $(VECTORS),--vectors $(VECTORS))

docs: setup ## write the references and what the commands shown in docs/ print now, and build the site
	@$(BIN)/python -m tests.docs --write
	@$(MAKE) --no-print-directory site

site: setup ## build the pages of docs/ as a site into .cache/site; every link and anchor is checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir .cache/site

changelog: setup ## show what the fragments of changelog.d say of the next release
	@$(BIN)/towncrier build --draft --version next

load: setup ## keep 500 pods coming and going for ten minutes of the host's time, while systemd's bus hangs for one [MINUTES=N]
	@$(BIN)/python -m tests.load --minutes $(MINUTES)

fuzz: setup ## give damaged inputs to every interface [INPUTS=N SEED=N]
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)

dependencies: setup ## write the SBOM and the third-party licences of the locked dependencies
	@$(BIN)/python -m deploy.dependencies

wheel: dependencies ## build the wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation --outdir $(DIST) .
	@$(CHECKSUMS)

deb: setup ## build the Debian package of this release and its SBOM into dist/ [TARGETS="debian-13 ..." or all]
	@$(BIN)/python -m deploy.deb --output $(DIST) $(TARGETS)
	@$(CHECKSUMS)

man: setup ## write the manual pages of all commands into dist/man
	@$(BIN)/python -m deploy.man

image: setup ## build the container image and its SBOM into dist/; needs root
	@$(BIN)/python -m deploy.image --output $(DIST)
	@$(CHECKSUMS)

checksums: ## write dist/SHA256SUMS of everything that was built
	@$(CHECKSUMS)

audit: setup ## look the locked dependencies up among the known vulnerabilities; needs the network
	@$(BIN)/pip-audit --requirement deploy/requirements/grpc.txt --require-hashes --disable-pip \
	    --strict $(AUDIT)

clean: ## remove what the other targets made, the guest images too
	@rm -rf .venv .cache dist build bench.json bench-rest.json .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

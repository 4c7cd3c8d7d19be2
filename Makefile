# Everything runs from a fresh clone: each target makes the virtual environment it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests and demo start hundreds of Python processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv programs demo train-demo pipeline-demo test test-fast properties test-integrations test-training mutants fields schedules gpu-check lint format images krew chart-docs docs page-pictures \
	dashboards dashboards-pictures vmui-pictures frontiers model-study \
	metered-cap evaluation clean
##@ To begin
help:  ## what the targets do
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@# One that is there keeps its Python: made over by another, it would find neither's modules.
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

venv: $(STAMP)  ## the virtual environment with everything in it

programs: $(STAMP)  ## all that tests need, fetched or built beforehand (half an hour, once)
	$(BIN)/python -m flyball_testbed.builds

clean:  ## remove what the targets made here (not the cached control-plane binaries)
	rm -rf $(VENV) out build dist

##@ Demos: a minute or more each, on one machine, without a GPU
demo: $(STAMP)  ## a cap stepped down and up over real jobs: a picture (DEMO_ARGS="--help")
	$(BIN)/flyball demo $(DEMO_ARGS)

train-demo: $(STAMP)  ## PyTorch resized, killed and cut, and left alone (TRAIN_DEMO_ARGS="--help")
	$(BIN)/python -m flyball_testbed.training.demo $(TRAIN_DEMO_ARGS)

pipeline-demo: $(STAMP)  ## a pipeline's plan acts on clocks (PIPELINE_DEMO_ARGS="--help")
	$(BIN)/python -m flyball_testbed.pipeline.demo $(PIPELINE_DEMO_ARGS)

##@ Tests
test: $(STAMP)  ## all tests but the integrations and training (TEST_ARGS="-k name")
	$(if $(TEST_ARGS),,$(BIN)/python -m flyball_testbed.builds)
	$(BIN)/pytest -m "not own_target" --numprocesses auto --dist loadfile $(TEST_ARGS)

test-fast: $(STAMP)  ## what needs no control plane and no long computation (TEST_ARGS as above)
	$(BIN)/pytest -m "not cluster and not chart and not whole_data and not slow and not own_target" --hypothesis-profile fast --numprocesses 4 --dist worksteal $(TEST_ARGS)

properties: $(STAMP)  ## properties of the pure code on twice as many, new examples (PROPERTIES_ARGS=...)
	$(BIN)/pytest -m "hypothesis and not cluster and not chart and not whole_data" --hypothesis-profile full --numprocesses auto --dist worksteal $(PROPERTIES_ARGS)

test-integrations: $(STAMP)  ## beside prometheus-operator, JobSet, vmui and others (built once, half an hour)
	$(BIN)/python -m flyball_testbed.controlplane.programs.integrations
	FLYBALL_INTEGRATIONS=1 $(BIN)/pytest -n0 tests/integrations $(TEST_ARGS)

test-training: $(STAMP)  ## real PyTorch, JAX, Keras, Lightning and Hugging Face (fetched once)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[training]'
	$(BIN)/python -m flyball_testbed.training.pytorch
	$(BIN)/python -m flyball_testbed.training.frameworks
	FLYBALL_TRAINING=1 $(BIN)/pytest -n0 tests/training $(TEST_ARGS)

mutants: $(STAMP)  ## mistakes in power decisions, to be noticed (MUTANTS_ARGS="--only bound")
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

fields: $(STAMP)  ## every field of a spec dropped, to be noticed by a test of it (FIELDS_ARGS="--only meter")
	$(BIN)/python -m tests.mutants.fields $(FIELDS_ARGS)

schedules: $(STAMP)  ## random faults over the real operator and agents (SCHEDULES_ARGS="--seconds 600")
	$(BIN)/python benchmarks/schedules.py $(SCHEDULES_ARGS)

gpu-check: $(STAMP)  ## what the agent takes for granted of GPUs; reads (GPU_CHECK_ARGS="--change")
	$(BIN)/flyball agent check-gpu $(GPU_CHECK_ARGS)
	$(if $(GPU_CHECK_ARGS),,FLYBALL_GPU_CHECK=1 $(BIN)/pytest -n0 tests/agent/gpu/test_real_gpu.py)

##@ Code
lint: $(STAMP)  ## ruff, mypy, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports
	cd client && PYTHONPATH=. ../$(BIN)/lint-imports --config pyproject.toml

format: $(STAMP)  ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

##@ What is shipped
images: $(STAMP)  ## the container images into out/images, with tests (root; IMAGES_ARGS="--help")
	$(BIN)/python -m flyball_testbed.images $(IMAGES_ARGS)
	$(BIN)/pytest -q tests/testbed/images

krew: $(STAMP)  ## `kubectl flyball` for krew into out/krew (KREW_ARGS="--help")
	$(BIN)/python -m flyball_testbed.krew_archive $(KREW_ARGS)

chart-docs: $(STAMP)  ## the table of values in the chart's README
	$(BIN)/python -m flyball_testbed.controlplane.programs.chart_tools helm-docs --chart-search-root deploy/helm

dashboards: $(STAMP)  ## the chart's dashboards for Grafana and vmui, from their list of panels
	$(BIN)/python -m flyball_testbed.monitoring files

##@ Documents and their pictures
dashboards-pictures: $(STAMP)  ## those of docs/dashboards.md, of a run of five minutes
	$(BIN)/python -m flyball_testbed.monitoring pictures $(PICTURES_ARGS)

vmui-pictures: $(STAMP)  ## that of vmui there, by VictoriaMetrics and Chromium
	$(BIN)/python -m benchmarks.vmui_pictures --output docs/images $(VMUI_ARGS)

DATA ?= ../shared/data
frontiers: $(STAMP)  ## those of docs/frontiers.md (Zeus' and Kareus' from DATA)
	$(BIN)/python -m flyball_studies.pipeline.pictures --output docs/images
	$(BIN)/flyball kareus pipeline --output out/frontiers
	cp out/frontiers/kareus-pipeline.png docs/images/
	@if [ -d $(DATA)/zeus-nsdi23 ] && [ -d $(DATA)/kareus ]; then \
	  $(BIN)/flyball zeus replay $(DATA)/zeus-nsdi23 --output out/frontiers && \
	  $(BIN)/flyball kareus replay $(DATA)/kareus --output out/frontiers && \
	  cp out/frontiers/zeus-v100-savings.png docs/images/zeus-savings.png && \
	  cp out/frontiers/zeus-v100-regret.png docs/images/zeus-regret.png && \
	  cp out/frontiers/kareus-hypervolume.png docs/images/; \
	else echo "$(DATA) has no zeus-nsdi23 and kareus: their pictures stay as they are"; fi

model-study: $(STAMP)  ## the figures of docs/models.md (from DATA)
	$(BIN)/python -m flyball_studies.models --data $(DATA) --document docs/models.md --images docs/images
	@if [ -d $(DATA)/perseus-sosp24 ]; then \
	  $(BIN)/flyball calibrate $(DATA)/perseus-sosp24/stage_profile/gpt3-175b+a100_sxm_bf16.csv \
	    --product NVIDIA-A100-SXM4-80GB --output out/a100.yaml --plot docs/images/models-calibration-a100.png; fi

metered-cap: $(STAMP)  ## that of a metered cap in docs/operator.md (seconds)
	$(BIN)/python -m benchmarks.metered_cap --output docs/images

evaluation: $(STAMP)  ## figures and pictures of docs/evaluation.md (two hours; goes on where it stopped)
	$(BIN)/python -m flyball_studies.evaluation --data $(DATA) $(EVALUATION_ARGS)

docs: $(STAMP)  ## the documentation as a site into out/site, every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

page-pictures: $(STAMP)  ## those of docs/page.md (five minutes; Chromium)
	$(BIN)/python -m benchmarks.page_pictures --output docs/images

# Everything runs from a fresh clone: each target makes the virtual environment it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests and demo start hundreds of Python processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv programs demo train-demo pipeline-demo test test-fast properties test-integrations test-training mutants schedules gpu-check lint format images krew chart-docs docs page-pictures \
	dashboards dashboards-pictures vmui-pictures frontiers model-study \
	metered-cap evaluation clean
help:  ## what the targets do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(STAMP): pyproject.toml constraints.txt
	@# One that is there keeps its Python: made over by another, it would find neither's modules.
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

venv: $(STAMP)  ## the virtual environment with everything in it

programs: $(STAMP)  ## what the tests need of programs and images, fetched or built beforehand, two at a time (half an hour, once)
	$(BIN)/python -m flyball_testbed.builds

demo: $(STAMP)  ## a real control plane, real jobs, a power cap stepped down and up (DEMO_ARGS="--help")
	$(BIN)/flyball demo $(DEMO_ARGS)

train-demo: $(STAMP)  ## real training with PyTorch, resized, killed and cut, beside the same left alone: a picture (TRAIN_DEMO_ARGS="--help")
	$(BIN)/python -m flyball_testbed.training.demo $(TRAIN_DEMO_ARGS)

pipeline-demo: $(STAMP)  ## a pipeline's energy plan acts on clocks, a straggler is answered: a picture (PIPELINE_DEMO_ARGS="--help")
	$(BIN)/python -m flyball_testbed.pipeline.demo $(PIPELINE_DEMO_ARGS)

test: $(STAMP)  ## the tests, on a real control plane; not test-integrations nor test-training (TEST_ARGS="-k name")
	$(if $(TEST_ARGS),,$(BIN)/python -m flyball_testbed.builds)
	$(BIN)/pytest -m "not own_target" --numprocesses auto --dist loadfile $(TEST_ARGS)

test-fast: $(STAMP)  ## what needs no control plane and no long computation, on fewer examples (TEST_ARGS as above)
	$(BIN)/pytest -m "not cluster and not chart and not whole_data and not slow and not own_target" --hypothesis-profile fast --numprocesses 4 --dist worksteal $(TEST_ARGS)

properties: $(STAMP)  ## every property of the pure code on new examples (PROPERTIES_ARGS="--hypothesis-profile thorough": thirty times as many)
	$(BIN)/pytest -m "hypothesis and not cluster and not chart and not whole_data" --numprocesses auto --dist worksteal $(PROPERTIES_ARGS)

test-integrations: $(STAMP)  ## beside other people's programs: prometheus-operator, JobSet, cosign, kube-score, vmui, kube-router; install.md typed (built once, half an hour)
	$(BIN)/python -m flyball_testbed.controlplane.programs.integrations
	FLYBALL_INTEGRATIONS=1 $(BIN)/pytest -n0 tests/integrations $(TEST_ARGS)

test-training: $(STAMP)  ## training with real PyTorch, JAX and Keras, resized and killed (fetched once; FLYBALL_TORCH_PYTHON names another PyTorch)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[training]'
	$(BIN)/python -m flyball_testbed.training.pytorch
	$(BIN)/python -m flyball_testbed.training.frameworks
	FLYBALL_TRAINING=1 $(BIN)/pytest -n0 tests/training $(TEST_ARGS)

mutants: $(STAMP)  ## mistakes made in the power decisions, each of which a test must notice (MUTANTS_ARGS="--only bound")
	$(BIN)/python -m tests.mutants $(MUTANTS_ARGS)

schedules: $(STAMP)  ## random schedules of faults over the real operator and agents (SCHEDULES_ARGS="--seconds 600")
	$(BIN)/python benchmarks/schedules.py $(SCHEDULES_ARGS)

gpu-check: $(STAMP)  ## what the agent takes for granted, on this machine's GPUs; reads only (GPU_CHECK_ARGS="--change")
	$(BIN)/flyball agent check-gpu $(GPU_CHECK_ARGS)
	$(if $(GPU_CHECK_ARGS),,FLYBALL_GPU_CHECK=1 $(BIN)/pytest -n0 tests/agent/gpu/test_real_gpu.py)

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

images: $(STAMP)  ## the operator's and the agent's image into out/images, and tests of what they hold (root; IMAGES_ARGS="--help")
	$(BIN)/python -m flyball_testbed.images $(IMAGES_ARGS)
	$(BIN)/pytest -q tests/testbed/images

krew: $(STAMP)  ## the archives of `kubectl flyball` for krew, with their index entry, into out/krew (KREW_ARGS="--help")
	$(BIN)/python -m flyball_testbed.krew_archive $(KREW_ARGS)

chart-docs: $(STAMP)  ## the table of values in the chart's README
	$(BIN)/python -m flyball_testbed.controlplane.programs.chart_tools helm-docs --chart-search-root deploy/helm

dashboards: $(STAMP)  ## the chart's dashboards for Grafana and vmui, from their list of panels
	$(BIN)/python -m flyball_testbed.monitoring files

dashboards-pictures: $(STAMP)  ## the pictures of docs/dashboards.md: a run of five minutes, and what a Prometheus saw of it
	$(BIN)/python -m flyball_testbed.monitoring pictures $(PICTURES_ARGS)

vmui-pictures: $(STAMP)  ## the picture of vmui in docs/dashboards.md: the same run, by a VictoriaMetrics and Chromium
	$(BIN)/python -m benchmarks.vmui_pictures --output docs/images $(VMUI_ARGS)

DATA ?= ../shared/data
frontiers: $(STAMP)  ## the pictures of docs/frontiers.md (Zeus' and Kareus' from measurements in DATA)
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

model-study: $(STAMP)  ## the figures of docs/models.md (what is measured from DATA)
	$(BIN)/python -m flyball_studies.models --data $(DATA) --document docs/models.md --images docs/images
	@if [ -d $(DATA)/perseus-sosp24 ]; then \
	  $(BIN)/flyball calibrate $(DATA)/perseus-sosp24/stage_profile/gpt3-175b+a100_sxm_bf16.csv \
	    --product NVIDIA-A100-SXM4-80GB --output out/a100.yaml --plot docs/images/models-calibration-a100.png; fi

metered-cap: $(STAMP)  ## the picture of a metered cap in docs/operator.md (a few seconds)
	$(BIN)/python -m benchmarks.metered_cap --output docs/images

evaluation: $(STAMP)  ## the figures and pictures of docs/evaluation.md (two hours of one core; goes on where it stopped)
	$(BIN)/python -m flyball_studies.evaluation --data $(DATA) $(EVALUATION_ARGS)

docs: $(STAMP)  ## the documentation as a site, with every link checked, into out/site (index.html)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

page-pictures: $(STAMP)  ## the pictures of docs/page.md (five minutes; Chromium)
	$(BIN)/python -m benchmarks.page_pictures --output docs/images

clean:  ## remove what the targets made here (not the cached control-plane binaries)
	rm -rf $(VENV) out build dist

# make demo · make test · make lint · make docs set up .venv first if it is missing. On a GPU: make test-gpu.
# make demo FULL=1: the models of the model zoo. make test COVERAGE=1: also the lines that the tests reach.
# make STACK=onedl ...: with the forks of OneDL, in .venv-onedl. make STACK=newest ...: with the newest torch and
# setuptools, in .venv-newest. make STACK=peers test: what needs torchvision, timm or mmpretrain, in .venv-peers.
# make STACK=classic ...: with torch 2.1 and numpy 1.26, in .venv-classic, on Python 3.10: PYTHON310 or pyenv's.
STACK ?= mm
PYTHON310 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.10*/bin/python) python3)
OLDEST := $(if $(filter classic,$(STACK)),10,11)
PYTHON ?= $(if $(filter classic,$(STACK)),$(PYTHON310),python3)
REQUIREMENTS_mm := torch mm
REQUIREMENTS_onedl := torch onedl
REQUIREMENTS_newest := mm
REQUIREMENTS_peers := peers mm
REQUIREMENTS_classic := classic
SUFFIX := $(if $(filter-out mm,$(STACK)),-$(STACK))
VENV := .venv$(SUFFIX)
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := python -m pip install --disable-pip-version-check
EXTRAS := $(if $(filter classic,$(STACK)),,export ray raster hub dev)
.PHONY: setup demo test test-slow test-gpu lint docs bench clean

setup: $(READY)

$(READY): $(wildcard requirements/*.txt) setup.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, $(OLDEST)) or sys.exit(sys.version + ": Python 3.$(OLDEST) or newer is needed, make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) $(patsubst %,-r requirements/%.txt,$(or $(REQUIREMENTS_$(STACK)),$(error STACK=$(STACK): give mm, onedl, newest, peers or classic)) $(EXTRAS)) -e .
	$(if $(filter newest,$(STACK)),$(BIN)/$(PIP) --upgrade setuptools)
	@$(BIN)/python -c "import cv2" || { echo "OpenCV needs libraries of the system: apt-get install libgl1 libglib2.0-0"; exit 1; }
	$(BIN)/xcit-mm doctor
	touch $@

demo: $(READY)
	@$(BIN)/python tools/demo.py $(if $(FULL),--full)

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
SUBSET_onedl := forks and
SUBSET_peers := peers and
# What a torch of its age may break, in 4 minutes.
TESTS_classic := $(addprefix tests/,ops weights/test_reader.py weights/test_layouts.py models/test_attention.py \
	models/test_backbone.py models/test_large_training.py models/test_prepare.py training/test_nonfinite.py training/test_resuming.py \
	launch/test_starting_runs.py prediction/test_predictor.py utils/test_compat.py test_platforms.py)

test: $(READY)
	$(PYTEST) -m "$(SUBSET_$(STACK)) not slow and not gpu and not compiled" $(if $(COVERAGE),--cov=xcit_mm --cov-report=term:skip-covered) $(TESTS_$(STACK))

# Environments on top of .venv. The site's Sphinx pins docutils and other packages.
COMPILED := .venv-compiled
SITE := .venv-docs$(SUFFIX)
on_top = $(PYTHON) -m venv $(1) && $(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$(echo $(1)/lib/python*/site-packages)/venv.pth

$(SITE)/.ready: $(READY) $(wildcard requirements/*.txt)
	$(call on_top,$(SITE))
	$(SITE)/bin/$(PIP) -c requirements/torch.txt -r requirements/docs.txt
	$(SITE)/bin/$(PIP) --no-deps -e .
	touch $@

# A compiled mmcv, for comparison: 11 minutes on 2 cores. Without build isolation its build finds torch; otherwise it
# silently omits the operators, and pip may have cached such a wheel.
$(COMPILED)/.ready: $(READY)
	$(call on_top,$(COMPILED))
	$(COMPILED)/bin/$(PIP) "setuptools<80" wheel ninja
	-@$(COMPILED)/bin/python -m pip cache remove --quiet '*mmcv-*-none-any' 2> /dev/null
	PATH="$(CURDIR)/$(COMPILED)/bin:$$PATH" MMCV_WITH_OPS=1 $(COMPILED)/bin/$(PIP) --no-build-isolation --no-deps mmcv==2.1.0
	touch $@

test-slow: $(SITE)/.ready $(if $(SUFFIX),,$(COMPILED)/.ready)
	$(PYTEST)
	$(SITE)/bin/python -m pytest tests/docs/test_notebooks.py
	$(if $(SUFFIX),,$(COMPILED)/bin/python -m pytest -m compiled tests/ops)

# In the user's environment, whose torch sees a GPU. Without mmdet and mmseg: GPU_TESTS=tests/models
test-gpu:
	$(or $(GPU_PYTHON),python) -m pytest -m gpu $(or $(GPU_TESTS),tests)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/python docs/readme_tables.py --check
	$(BIN)/python tests/sizes.py

docs: $(SITE)/.ready
	rm -rf build/docs
	PATH="$(CURDIR)/$(SITE)/bin:$$PATH" $(SITE)/bin/python -m sphinx -E -n -W --keep-going -q -b html docs build/docs

# In an environment with timm too: make bench BENCH_PYTHON=python. Some measurements: make bench ONLY=4-resolution.
bench: $(READY)
	DEVICE=$(or $(DEVICE),cpu) BENCH_PYTHON=$(or $(BENCH_PYTHON),$(BIN)/python) bash benchmarks/run.sh $(ONLY)

clean:
	rm -rf $(VENV) $(SITE) $(if $(SUFFIX),,$(COMPILED))

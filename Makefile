# make demo · make test · make lint · make docs · make bench, and on a GPU make test-gpu · make bench-gpu: each
# but the last two sets up .venv first, if it is not there.
# make STACK=onedl ...: with the forks that OneDL maintains, in .venv-onedl.
PYTHON ?= python3
STACK ?= mm
SUFFIX := $(if $(filter-out mm,$(STACK)),-$(STACK))
VENV := .venv$(SUFFIX)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-slow test-gpu lint docs bench bench-gpu clean

setup: $(READY)

EXTRAS := export parquet ray raster dev

# torch's file is apart, since a user chooses the build, for the CPU or a CUDA, of his own.
$(READY): $(wildcard requirements/*.txt) setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 10) or sys.exit(f"Python {v[0]}.{v[1]}: this stack needs 3.10 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(foreach name,torch $(STACK) $(EXTRAS),-r requirements/$(name).txt) -e .
	@$(BIN)/python -c "import cv2" || { echo "OpenCV needs libraries of the system: apt-get install libgl1 libglib2.0-0"; exit 1; }
	$(BIN)/python tools/doctor.py
	touch $@

demo: $(READY)
	$(BIN)/python tools/demo.py

# Each worker takes one half in order, so that tests which share costly fixtures stay together, and steals at the end.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# make test COVERAGE=1 also tells which lines of the package the tests reach; about a quarter slower.
test: $(READY)
	$(PYTEST) -m "not slow and not gpu and not compiled" $(if $(COVERAGE),--cov=xcit_mm --cov-report=term:skip-covered)

# Environments on top of .venv, not in it: mmdet imports mmpretrain where it is, and a torchvision made for CUDA, which
# mmpretrain may bring, cannot be imported beside a torch for the CPU. The constraint keeps the pinned torch.
MMPRETRAIN := .venv-mmpretrain
COMPILED := .venv-compiled
on_top = $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(echo $(1)/lib/python*/site-packages)/venv.pth

$(MMPRETRAIN)/.ready: $(READY)
	$(PYTHON) -m venv $(MMPRETRAIN)
	$(call on_top,$(MMPRETRAIN))
	$(MMPRETRAIN)/bin/python -m pip install --disable-pip-version-check -c requirements/torch.txt -r requirements/classification.txt
	touch $@

# A compiled mmcv, to compare with. Without build isolation it finds torch, or it would silently come without operators;
# with ninja on the path it takes all cores. pip keeps the wheel for the next time; one without operators, which pip
# may have kept from elsewhere, is of "any" platform and is not taken.
$(COMPILED)/.ready: $(READY)
	$(PYTHON) -m venv $(COMPILED)
	$(call on_top,$(COMPILED))
	$(COMPILED)/bin/python -m pip install --disable-pip-version-check "setuptools<80" wheel ninja
	-@$(COMPILED)/bin/python -m pip cache remove --quiet '*mmcv-*-none-any' 2> /dev/null
	@echo "== compiling mmcv: about 11 minutes on 2 cores the first time =="
	PATH="$(CURDIR)/$(COMPILED)/bin:$$PATH" MMCV_WITH_OPS=1 $(COMPILED)/bin/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps mmcv==2.1.0
	touch $@

# mmpretrain and the compiled mmcv stand on the classic stack alone.
ifeq ($(STACK),mm)
test-slow: $(MMPRETRAIN)/.ready $(COMPILED)/.ready
endif
test-slow: $(READY)
	$(PYTEST)
ifeq ($(STACK),mm)
	$(MMPRETRAIN)/bin/python -m pytest -m mmpretrain tests/models/test_classifier.py tests/test_heads.py
	$(COMPILED)/bin/python -m pytest -m compiled tests/ops
endif

# In an environment of one's own, whose torch sees a GPU: the pinned one is made for the CPU. torchvision
# made for the same CUDA makes detectors fast; without mmdet and mmseg: make test-gpu GPU_PYTHON=python GPU_TESTS=tests/models
GPU_PYTHON ?= python
GPU_TESTS ?= tests

test-gpu:
	$(GPU_PYTHON) -m pytest -m gpu $(GPU_TESTS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(BIN)/python docs/readme_tables.py --check
	$(BIN)/python docs/doctor_page.py --check

# The site. Its own environment, on top of .venv, since Sphinx would pin docutils and others for all.
SITE := .venv-docs$(SUFFIX)

$(SITE)/.ready: $(READY) requirements/docs.txt
	$(PYTHON) -m venv $(SITE)
	$(call on_top,$(SITE))
	$(SITE)/bin/python -m pip install --disable-pip-version-check -r requirements/docs.txt
	touch $@

docs: $(SITE)/.ready
	rm -rf build/docs
	$(SITE)/bin/python -m sphinx -E -n -W --keep-going -q -b html docs build/docs
	$(SITE)/bin/python docs/check_links.py build/docs

# In an environment that has the peers: make bench BENCH_PYTHON=python.
BENCH_PYTHON ?= $(BIN)/python
BENCH := $(BENCH_PYTHON) benchmarks/benchmark.py
PEERS := timm-xcit mmpretrain-xcit swin-t pvt-small resnet-50

bench: $(READY)
	@$(BENCH_PYTHON) -c 'from importlib.util import find_spec; import sys; lacks = [name for name in ("timm", "mmpretrain", "mmdet") if not find_spec(name)]; lacks and sys.exit(sys.executable + " has no " + ", ".join(lacks) + ", with which the tables compare: make bench BENCH_PYTHON=..., of an environment that has them")'
	$(BENCH) --models xcit-auto xcit-plain xcit-gram xcit-trunk $(PEERS) --out docs/benchmark/1-forward
	$(BENCH) --models xcit-auto xcit-plain --patch-size 8 --repeats 3 --out docs/benchmark/2-forward-p8
	$(BENCH) --models xcit-auto xcit-plain xcit-auto-cp timm-xcit swin-t --mode train --batch 2 --repeats 3 --out docs/benchmark/3-train
	$(BENCH) --models xcit-auto xcit-plain timm-xcit swin-t resnet-50 --sizes 224 384 512 1024 2048 3072 --repeats 3 --memory \
		--out docs/benchmark/4-resolution
	$(BENCH) --models xcit-auto --sizes 4000x6000 --repeats 3 --memory --out docs/benchmark/5-huge
	cat docs/benchmark/*.md > docs/benchmark.md
	$(BIN)/python docs/readme_tables.py

bench-gpu:
	$(GPU_PYTHON) benchmarks/benchmark_attention.py --out docs/benchmark/9-attention.csv
	$(GPU_PYTHON) benchmarks/benchmark_attention.py --train --batch 8 --out docs/benchmark/9-attention-train.csv

# The environment of this STACK and those that stand on it.
clean:
	rm -rf $(VENV) $(SITE) $(if $(filter mm,$(STACK)),$(MMPRETRAIN) $(COMPILED))

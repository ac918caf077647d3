# make demo · make test · make lint · make docs · make bench set up .venv first if it is missing.
# On a GPU: make test-gpu.
# make STACK=onedl ...: with the forks of OneDL, in .venv-onedl.
PYTHON ?= python3
STACK ?= mm
SUFFIX := $(if $(filter-out mm,$(STACK)),-$(STACK))
VENV := .venv$(SUFFIX)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-slow test-gpu lint docs bench clean

setup: $(READY)

EXTRAS := export ray raster hub dev

# torch has its own file, because a user may choose another build, for the CPU or CUDA.
$(READY): $(wildcard requirements/*.txt) setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 10) or sys.exit(f"Python {v[0]}.{v[1]}: this stack needs 3.10 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check $(foreach name,torch $(STACK) $(EXTRAS),-r requirements/$(name).txt) -e .
	@$(BIN)/python -c "import cv2" || { echo "OpenCV needs libraries of the system: apt-get install libgl1 libglib2.0-0"; exit 1; }
	$(BIN)/python tools/doctor.py
	touch $@

demo: $(READY)
	$(BIN)/python tools/demo.py

# Each process runs one half in order, so that tests that share costly fixtures stay together, and takes over tests of
# the other half at the end.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# make test COVERAGE=1 also reports the lines of the package that the tests reach, and takes about a quarter longer.
test: $(READY)
	$(PYTEST) -m "not slow and not gpu and not compiled" $(if $(COVERAGE),--cov=xcit_mm --cov-report=term:skip-covered)

# Environments on top of .venv. In .venv itself mmdet would import mmpretrain, which may install a torchvision for CUDA,
# and that cannot be imported beside a torch for the CPU. The constraint keeps the pinned torch.
MMPRETRAIN := .venv-mmpretrain
COMPILED := .venv-compiled
# Of the site, whose Sphinx pins docutils and other packages. Its notebooks call `xcit-mm` of the same environment.
SITE := .venv-docs$(SUFFIX)
on_top = $(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > $$(echo $(1)/lib/python*/site-packages)/venv.pth

$(MMPRETRAIN)/.ready: $(READY)
	$(PYTHON) -m venv $(MMPRETRAIN)
	$(call on_top,$(MMPRETRAIN))
	$(MMPRETRAIN)/bin/python -m pip install --disable-pip-version-check -c requirements/torch.txt -r requirements/classification.txt
	touch $@

# A compiled mmcv, for comparison. Without build isolation its build finds torch; otherwise it silently omits the
# operators. With ninja on the path it uses all cores. pip caches the wheel. A cached wheel without operators, which is
# for "any" platform, is removed first.
$(COMPILED)/.ready: $(READY)
	$(PYTHON) -m venv $(COMPILED)
	$(call on_top,$(COMPILED))
	$(COMPILED)/bin/python -m pip install --disable-pip-version-check "setuptools<80" wheel ninja
	-@$(COMPILED)/bin/python -m pip cache remove --quiet '*mmcv-*-none-any' 2> /dev/null
	@echo "== compiling mmcv: about 11 minutes on 2 cores the first time =="
	PATH="$(CURDIR)/$(COMPILED)/bin:$$PATH" MMCV_WITH_OPS=1 $(COMPILED)/bin/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps mmcv==2.1.0
	touch $@

# Only the classic stack has environments with mmpretrain and a compiled mmcv.
ifeq ($(STACK),mm)
test-slow: $(MMPRETRAIN)/.ready $(COMPILED)/.ready
endif
test-slow: $(SITE)/.ready
	$(PYTEST)
	$(SITE)/bin/python -m pytest tests/docs/test_notebooks.py
ifeq ($(STACK),mm)
	$(MMPRETRAIN)/bin/python -m pytest -m mmpretrain tests/models/test_classifier.py tests/test_heads.py tests/training/test_resuming_epochs.py
	$(COMPILED)/bin/python -m pytest -m compiled tests/ops
endif

# In the user's environment, whose torch sees a GPU; the pinned torch is for the CPU. torchvision for the same CUDA
# speeds detectors up. Without mmdet and mmseg: make test-gpu GPU_PYTHON=python GPU_TESTS=tests/models
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

$(SITE)/.ready: $(READY) requirements/docs.txt
	$(PYTHON) -m venv $(SITE)
	$(call on_top,$(SITE))
	$(SITE)/bin/python -m pip install --disable-pip-version-check -r requirements/docs.txt
	$(SITE)/bin/python -m pip install --disable-pip-version-check --no-deps -e .
	touch $@

docs: $(SITE)/.ready
	rm -rf build/docs
	PATH="$(CURDIR)/$(SITE)/bin:$$PATH" $(SITE)/bin/python -m sphinx -E -n -W --keep-going -q -b html docs build/docs
	$(SITE)/bin/python docs/check_links.py build/docs

# In an environment with the compared libraries: make bench BENCH_PYTHON=python.
BENCH_PYTHON ?= $(BIN)/python
BENCH := $(BENCH_PYTHON) benchmarks/benchmark.py
COMPARED := xcit-auto xcit-trunk timm-xcit swin-t convnext-t
PEERS := timm-xcit mmpretrain-xcit swin-t convnext-t pvt-small resnet-50

bench: $(READY)
	@$(BENCH_PYTHON) -c 'from importlib.util import find_spec; import sys; missing = [name for name in ("timm", "mmpretrain", "mmdet") if not find_spec(name)]; missing and sys.exit(sys.executable + " lacks " + ", ".join(missing) + ": set BENCH_PYTHON to the Python of an environment that has them")'
	$(BENCH) --models xcit-auto xcit-plain xcit-trunk $(PEERS) --out docs/benchmark/1-forward
	$(BENCH) --models $(COMPARED) --dtype bfloat16 --memory --repeats 9 --out docs/benchmark/1b-bfloat16
	$(BENCH) --models $(COMPARED) --compile --out docs/benchmark/1c-compiled
	$(BENCH) --models $(COMPARED) --compile --dtype bfloat16 --out docs/benchmark/1d-compiled-bfloat16
	$(BENCH) --models xcit-auto xcit-plain --patch-size 8 --repeats 3 --out docs/benchmark/2-forward-p8
	$(BENCH) --models xcit-auto xcit-plain xcit-auto-cp timm-xcit swin-t --mode train --batch 2 --repeats 3 --out docs/benchmark/3-train
	$(BENCH) --models xcit-auto xcit-plain timm-xcit swin-t resnet-50 --sizes 224 384 512 1024 2048 3072 --repeats 3 --memory \
		--out docs/benchmark/4-resolution
	$(BENCH) --models xcit-auto --sizes 4000x6000 --repeats 3 --memory --out docs/benchmark/5-huge
	sed -i '/^<!-- The rest of this page/q' docs/benchmark.md
	cat docs/benchmark/1*.md docs/benchmark/3-*.md >> docs/benchmark.md
	rm docs/benchmark/[1-5]*.md
	$(BIN)/python docs/readme_tables.py

# Remove the environments of this STACK.
clean:
	rm -rf $(VENV) $(SITE) $(if $(filter mm,$(STACK)),$(MMPRETRAIN) $(COMPILED))

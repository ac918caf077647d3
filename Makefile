# make demo · make test · make lint: each sets up .venv first, if it is not there.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo test test-slow lint clean

setup: $(READY)

# mmcv has no wheel for this torch. It is compiled in sight of torch (no build isolation), or it would
# silently come without its operators; pip keeps the wheel for the next time.
$(READY): requirements/runtime.txt requirements/build.txt requirements/mm.txt requirements/tests.txt setup.py
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v <= (3, 12) or sys.exit(f"Python {v[0]}.{v[1]}: this stack needs 3.10 to 3.12; run make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements/build.txt
	@echo "== mmcv and its operators: about 11 minutes on 2 cores the first time =="
	MMCV_WITH_OPS=1 $(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation -r requirements/mm.txt -r requirements/tests.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation -e .
	$(BIN)/python tools/doctor.py
	touch $@

demo: $(READY)
	$(BIN)/python tools/demo.py

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

clean:
	rm -rf .venv

# `make run` starts the dashboard and `make test` runs all tests. Both first install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8501
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# pip compiles no modules, so Python must store those that it compiles on import, even if the
# environment sets PYTHONDONTWRITEBYTECODE, as in many containers. Otherwise every process would
# take three times as long to import the libraries.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test pytest check lint types install clean bench picture docs lock links

run: $(VENV)/.installed
	$(BIN)/python -m poslens run --port $(PORT)

# Type checking needs one core for a minute, so it runs next to the tests. The order of files is that
# of tests/e2e/conftest.py: small ones last, so that all workers stay busy. A worker uses up to
# 3.5 GB of memory. Tests often wait, so three workers suit two cores.
WORKERS ?= 3
test: $(VENV)/.installed-tests lint links
	@$(MAKE) --no-print-directory --jobs=2 types pytest

pytest: $(VENV)/.installed-tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: lint types

lint: $(VENV)/.installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-tests links
	$(BIN)/mypy

# Run modules of bench/, such as `make bench BENCH=store`; by default, those that measure pages.
BENCH ?= saliency decomposition page
bench: $(VENV)/.installed-tests
	for name in $(BENCH); do $(BIN)/python -m bench.$$name || exit 1; done

# Retake the screenshots of README and the tour after a page has changed.
picture: $(VENV)/.installed-tests
	$(BIN)/python -m bench.picture

# Build the docs as a site in build/site.
docs: $(VENV)/.installed-tests links
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet -f tools/site/mkdocs.yml

install: $(VENV)/.installed

# Imports use `poslens.attribution`, `poslens.cache` and `poslens.dashboard`. Python finds these
# folders through poslens/__init__.py; editors and mypy need links.
links:
	@for name in attribution cache dashboard; do ln -sfn ../$$name poslens/$$name; done

# Install torch first and separately: as a dependency of another package, it could be replaced by a
# build with gigabytes of CUDA libraries. The other packages come from requirements.lock, which has
# their hashes; torch's hash depends on the build that the user chose. pip compiles no modules,
# because compiling all of them takes longer than unpacking them.
$(VENV)/.installed: requirements.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' requirements.txt)"
	$(PIP) --no-deps --require-hashes -r requirements.lock
	@sh tests/system_packages.sh chromium || echo "Chromium is missing: PNG, SVG and PDF export need it." >&2
	@touch $@

$(VENV)/.installed-tests: $(VENV)/.installed tests/requirements.txt
	$(PIP) -r tests/requirements.txt
	@sh tests/system_packages.sh chromium headless-shell fonts nginx
	@touch $@

# Update the locks after the requirements have changed, for all platforms and Python 3.11 or later.
UNLOCKED := torch==|triton==|nvidia-|cuda-|.*sys_platform == 'emscripten'
define locked
	( sed -n '/^#/p' $(1).lock; \
	  $(BIN)/python -m uv pip compile $(1).txt $(2) --universal --generate-hashes --quiet \
	    --python-version 3.11 --no-header --no-annotate \
	    | sed -e ':a' -e '/\\$$/N; s/ *\\\n */ /; ta' | grep -vE "^($(UNLOCKED))" \
	) > $(1).lock.new
	mv $(1).lock.new $(1).lock
endef
lock: $(VENV)/.installed
	$(PIP) uv==0.13.9
	$(call locked,requirements)
	$(call locked,deploy/requirements,-c requirements.lock)

clean:
	rm -rf $(VENV)

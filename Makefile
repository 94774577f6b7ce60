# `make demo` and `make test` work from a clean clone: each sets up what it needs first.
PYTHON ?= $(or $(shell command -v python3.11),python3)
# The one torch of the environment. Where the default index serves CUDA builds, point TORCH_INDEX at a CPU one.
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
# One environment for each Python: `make test PYTHON=python3.12` has .venv-3.12.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV ?= .venv$(if $(filter-out 3.11,$(VERSION)),-$(VERSION))
BIN := $(VENV)/bin
SOURCES := $(wildcard csrc/*) $(wildcard cpp/src/machine_code.*) setup.py pyproject.toml
# The package with its extension, and the tools that tests need besides.
PACKAGE := $(VENV)/.package
EXTENSION := $(VENV)/.built

.DEFAULT_GOAL := help
.PHONY: help setup wheel demo test test-gpu sanitize-gpu lint golden fuzz fuzz-files sanitize bench docs site pictures report test-report cpp clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/.torch:
	@echo 'making $(VENV) with $(TORCH)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'setuptools>=77' wheel ninja numpy
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	touch $@

# Built with the environment's own torch (no build isolation), so no second torch is ever fetched.
$(PACKAGE): $(VENV)/.torch $(SOURCES)
	@echo 'building the C++ extension: this takes minutes, and says nothing until it is done'
	$(BIN)/pip install --quiet --no-build-isolation -e .
	touch $@

# Their names are read here, as `pip install -e .[dev]` would build the extension once more.
$(EXTENSION): $(PACKAGE)
	@echo 'installing what tests need'
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"], sep="\n")' > $(VENV)/dev.txt
	$(BIN)/pip install --quiet -r $(VENV)/dev.txt
	touch $@

# For the Python and the torch of the environment; `make wheel PYTHON=python3.12` for another.
wheel: $(PACKAGE) ## build a wheel for this Python and torch, into dist
	LAMPWORK_BUILD_REUSE=1 $(BIN)/pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .

setup: $(EXTENSION) ## make the virtual environment and build the extension

demo: $(PACKAGE) ## compile AlexNet and BERT-base, compare with eager and torch.compile
	$(BIN)/python examples/demo.py

# Which tests; all of them, if none are named. SHARE=6: of tests with many cases every sixth, as CI does.
TESTS ?=
SHARE ?= 1

# A signal leaves no summary; the name of the test it came in is worth the more.
test: $(EXTENSION) ## run the test suite
	@running=$$(mktemp) && export TEST_RUNNING=$$running && $(BIN)/python -m pytest --share $(SHARE) $(TESTS) || { rc=$$?; if [ $$rc -ge 128 ]; then printf 'ended by a signal in ' && cat $$running; fi; exit $$rc; }

# A Python whose torch is built for CUDA; GPU_FLAGS= where it has no pytest-xdist. The report has every failure in full.
GPU_PYTHON ?= $(BIN)/python
GPU_TESTS ?= tests/gpu
GPU_FLAGS ?= -n 8 --maxschedchunk 2
GPU_REPORT ?= build/test-gpu.xml

test-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(EXTENSION)) ## the tests that need a GPU; GPU_PYTHON=python3 for a torch that has CUDA
	$(GPU_PYTHON) setup.py --quiet egg_info build_ext --inplace
	OMP_NUM_THREADS=2 PYTHONPATH=src:$$PYTHONPATH COLUMNS=220 $(GPU_PYTHON) -m pytest $(GPU_TESTS) $(GPU_FLAGS) --tb=short --junitxml=$(GPU_REPORT)

sanitize-gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(EXTENSION)) ## generated kernels of a GPU under compute-sanitizer
	$(GPU_PYTHON) setup.py --quiet build_ext --inplace
	PYTHONPATH=src:$$PYTHONPATH $(GPU_PYTHON) benchmarks/gpu_sanitize.py

lint: $(EXTENSION) ## ruff, pyright, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

golden: $(EXTENSION) ## rewrite the golden files from what the code prints now
	$(BIN)/python -m pytest --update-golden

# Length, and one seed to repeat; `make fuzz FUZZ=20000`. A failure prints its seed; CONTRIBUTING.md says how to repeat it.
FUZZ ?= 1400
SEED ?=

fuzz: $(EXTENSION) ## all fuzzers, longer than in `make test`
	LAMPWORK_FUZZ=$(FUZZ) $(if $(SEED),LAMPWORK_FUZZ_SEED=$(SEED)) $(BIN)/python -m pytest -k fuzz -rA --timeout=0

# Needs Clang with libFuzzer. What it finds lies in build/fuzz; what it has learned, in build/fuzz/corpus, is where it goes on.
CLANG ?= clang
RUNS ?= 100000

fuzz-files: $(EXTENSION) ## damaged .lamp files through the C++ loader under sanitizers, guided by coverage; RUNS=n of them
	cmake -G Ninja -S cpp -B build/fuzz -DLAMPWORK_SANITIZE=ON -DLAMPWORK_FUZZ=ON -DCMAKE_BUILD_TYPE=Debug \
		-DCMAKE_CXX_FLAGS_DEBUG=-O2 -DCMAKE_C_COMPILER=$(CLANG) -DCMAKE_CXX_COMPILER=$(subst clang,clang++,$(CLANG))
	ninja -C build/fuzz lampwork_fuzz_guided
	mkdir -p build/fuzz/corpus
	test -d build/fuzz/seeds || $(BIN)/python cpp/tests/fuzz_corpus.py build/fuzz/seeds
	build/fuzz/tests/lampwork_fuzz_guided -runs=$(RUNS) -dict=cpp/tests/fuzz.dict -max_len=32768 -timeout=60 \
		-artifact_prefix=build/fuzz/ build/fuzz/corpus build/fuzz/seeds

# A copy of the package with an extension of its own, so that the usual build stays as it is.
SANITIZED := build/sanitize
SANITIZED_TESTS ?= tests/unit/runtime tests/unit/api tests/models/test_programs.py tests/models/test_constants.py \
	tests/models/test_constants_fuzz.py tests/fuzz/test_program_fuzz.py tests/unit/lower/test_lower_sort.py

$(SANITIZED)/.built: $(VENV)/.torch $(SOURCES)
	mkdir -p $(SANITIZED)
	LAMPWORK_BUILD_SANITIZE=1 $(BIN)/python setup.py --quiet build_ext \
		--build-lib $(SANITIZED) --build-temp $(SANITIZED)/temp
	touch $@

sanitize: $(EXTENSION) $(SANITIZED)/.built ## the C++ part under AddressSanitizer and UndefinedBehaviorSanitizer
	cp -r $(filter-out %.so,$(wildcard src/lampwork/*)) $(SANITIZED)/lampwork/
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:handle_segv=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	PYTHONPATH=$(SANITIZED) $(BIN)/python -m pytest -x $(SANITIZED_TESTS)

# Needs cmake, ninja and a compiler of C++20, but neither Python nor torch. CPP_FLAGS=-DLAMPWORK_EXAMPLES=ON for the server.
CPP_FLAGS ?=

cpp: ## build the C++ runtime of artifacts in build/cpp, and run its tests
	cmake -G Ninja -S cpp -B build/cpp $(CPP_FLAGS)
	ninja -C build/cpp
	ctest --test-dir build/cpp --output-on-failure

$(VENV)/.bench: $(EXTENSION)
	$(BIN)/pip install --quiet --no-build-isolation -e '.[bench]'
	touch $@

bench: $(VENV)/.bench ## measure against every peer; writes bench.json (takes long; see docs/benchmarks.md)
	$(BIN)/python -m lampwork.bench --json bench.json

docs: $(EXTENSION) ## regenerate the reference pages under docs/ from the code
	$(BIN)/python docs/generate.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The site is made of the Markdown alone: neither torch nor the package is needed.
$(VENV)/.site: pyproject.toml | $(BIN)/python
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["site"], sep="\n")' > $(VENV)/site.txt
	$(BIN)/pip install --quiet -r $(VENV)/site.txt
	touch $@

# Written anew each time, so that no page of before is left; what has not changed is not read again.
site: $(VENV)/.site ## build the documentation site into build/site, with every link checked
	rm -rf build/site
	$(BIN)/sphinx-build -a -q -W --keep-going -b html -c site -d build/site-doctrees . build/site
	@echo 'build/site/index.html'

# The built page is checked in: who only uses Lampwork needs no node.
report/node_modules/.package-lock.json: report/package.json report/package-lock.json
	cd report && npm ci --no-audit --no-fund --ignore-scripts

report: report/node_modules/.package-lock.json ## build the page of reports from report/ (needs node)
	cd report && npm run --silent build

$(VENV)/.browser: $(EXTENSION)
	$(BIN)/pip install --quiet --no-build-isolation -e '.[browser]'
	touch $@

# Chromium is that of the system, or of `playwright install chromium`.
test-report: $(VENV)/.browser report/node_modules/.package-lock.json ## tests of the page of reports, in a browser
	$(BIN)/python -m pytest tests/unit/inspect/test_report_page.py

pictures: $(VENV)/.browser ## take the pictures in docs/pictures again, of a report in Chromium
	$(BIN)/python tools/take_pictures.py

clean: ## remove build products, keep the virtual environment
	rm -rf build dist src/lampwork/_C*.so src/lampwork/_C*.torch $(PACKAGE) $(EXTENSION)

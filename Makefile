# The two commands of the README are `make demo` and `make check`; each takes a
# bare Debian 12 (root, package registries only) to the end: packages, build,
# run. Both are safe to repeat and reuse what is already built.
#
#   make demo    build, then run the main job on the shipped capture
#   make check   build, then run every check and test
#   make build   tools in build/bin, the package in build/venv
#   make tidy    clang-tidy on every source (check runs it on changed ones)
#   make doc     regenerate docs/generated from the ODS
#   make bench   the benchmarks (never part of check)
#   make format  apply clang-format and ruff

BUILD ?= build
JOBS ?= $(shell nproc)
PY := $(BUILD)/venv/bin/python
STAMPS := $(BUILD)/stamps
LLVM := /usr/lib/llvm-22
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
# Paths the tests need, so that they run from any folder.
export KVCACHE_BIN_DIR := $(CURDIR)/$(BUILD)/bin

.PHONY: all build demo check test lint tidy doc bench format clean
all: build

$(STAMPS)/packages: scripts/install-packages.sh
	@mkdir -p $(STAMPS)
	scripts/install-packages.sh
	@touch $@

$(STAMPS)/venv: scripts/requirements.txt $(STAMPS)/packages
	/usr/bin/python3 -m venv $(BUILD)/venv
	$(PY) -m pip install -q --disable-pip-version-check -r scripts/requirements.txt
	@touch $@

$(BUILD)/build.ninja: $(STAMPS)/venv
	scripts/configure.sh $(BUILD)

build: $(BUILD)/build.ninja
	ninja -C $(BUILD) -j$(JOBS)
	scripts/install-python.sh $(BUILD)

demo: build
	$(PY) python/examples/demo.py --build-dir $(BUILD)

# Order: what fails fastest first.
check: build
	scripts/check.sh $(BUILD) $(JOBS)

lint: $(BUILD)/build.ninja
	scripts/lint.sh $(BUILD)

tidy: build
	scripts/tidy.sh $(BUILD) --all

doc: $(BUILD)/build.ninja
	ninja -C $(BUILD) kvcache-doc

bench: build
	scripts/bench.sh $(BUILD)

format: $(STAMPS)/venv
	git ls-files '*.cpp' '*.h' '*.c' | xargs $(LLVM)/bin/clang-format -i
	$(PY) -m ruff check --fix -q python test scripts bench
	$(PY) -m ruff format -q python test scripts bench

clean:
	rm -rf $(BUILD)

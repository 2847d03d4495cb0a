# Thin: each target is what one would type by hand. `make help` lists them.

JOBS ?= $(shell nproc)
MODEL ?= models/tandem-demo
FUZZ_SECONDS ?= 60

# Not run by default: long sweeps, and tests of what a plain machine does not have.
SKIPPED_LABELS = slow|gpu|original|network
CTEST = ctest --no-tests=error -j2 -LE '$(SKIPPED_LABELS)' $(if $(T),-R '$(T)')
SOURCES = git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh'

.PHONY: help setup build demo test check bench format

help:
	@echo 'make demo                 set up, build, and let the embedded model write'
	@echo 'make build                build/release/tandem'
	@echo 'make test [T=regex]       set up, build, and run the tests (those whose name matches)'
	@echo 'make check                format, layers, docs, sanitized tests, fuzz targets (FUZZ_SECONDS=$(FUZZ_SECONDS) each)'
	@echo 'make bench OP=decode      tandem bench OP [MODEL=folder or synth:NAME] [ARGS=...]'
	@echo 'make format               clang-format on all sources'

setup:
	@scripts/setup

build: setup
	@cmake --preset release >/dev/null
	cmake --build --preset release --target tandem -j $(JOBS)

demo: build
	printf 'class Account:\n    def __init__(self, owner, balance=0):\n' | \
	  build/release/tandem generate --model models/tandem-demo --max-tokens 150 --echo -

test: setup
	@cmake --preset release >/dev/null
	cmake --build --preset release -j $(JOBS)
	$(CTEST) --preset release

check:
	@scripts/setup --check
	$(SOURCES) | xargs clang-format-14 --dry-run -Werror
	tools/layers
	@cmake --preset asan >/dev/null
	cmake --build --preset asan -j $(JOBS)
	tools/docs_check build/asan/tandem
	$(CTEST) --preset asan
	@cmake --preset fuzz >/dev/null
	cmake --build --preset fuzz -j $(JOBS)
	tools/fuzz $(FUZZ_SECONDS)

bench: build
	build/release/tandem bench $(or $(OP),--help) $(if $(filter-out bandwidth,$(OP)),--model '$(MODEL)') $(ARGS)

format:
	@scripts/setup --check
	$(SOURCES) | xargs clang-format-14 -i

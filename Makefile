# The front door of librendezvous. Each target shows the commands it runs; `make` alone lists the targets.
#
# Everything that is built stands under target/. CARGO, CC, CXX, CXXFLAGS and PYTHON can be set on the command line, and
# FEATURES for the library: --no-default-features leaves agents and RPC out.

.DEFAULT_GOAL := help
.PHONY: help demo test check lint lib pages install uninstall examples header interop bench fuzz soak siege chaos sbom clean

CARGO ?= cargo
CXXFLAGS ?= -O2 -Wall -Wextra
PYTHON ?= python3
FUZZ_SECONDS ?= 60
DENY ?=
SEEDS ?= 10000
MINUTES ?= 10
TLS ?=
JOBS ?= $(shell nproc)
FEATURES ?=

# Where `make install` copies to, with the usual names, and from where.
PREFIX ?= /usr/local
DESTDIR ?=
bindir ?= $(PREFIX)/bin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
datadir ?= $(PREFIX)/share
BUILT ?= target/release
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
SERIES := $(basename $(VERSION))

# A target folder that the user's cargo configuration may name would not be found by the commands below.
export CARGO_TARGET_DIR := $(CURDIR)/target

# The library must not tell where it was built. The first flag is that of .cargo/config.toml, which RUSTFLAGS replaces.
export RUSTFLAGS := $(RUSTFLAGS) -Cforce-frame-pointers=yes --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo --remap-path-prefix=$(CURDIR)=/librendezvous

# `make` says what a target needs before it builds for minutes. The first word is the program, the rest what it is for.
define needs
@command -v $(firstword $(1)) >/dev/null || { echo "$(firstword $(1)) is missing: $(wordlist 2,99,$(1))"; exit 1; }
endef

# A C++17 program beside the shared library. Each program finds the library from its own place, so the clone can move.
COMPILE = $(CXX) -std=c++17 $(CXXFLAGS) -Iinclude
LINK = -Ltarget/release -lrendezvous

# The packages that `make check` tests. Cargo chooses the features of dependencies by the packages that a command names:
# with the same ones in each command, no crate is built twice.
CHECKED = -p rendezvous-core -p rendezvous-agent -p rendezvous-rpc -p rendezvous-tests

demo: lib ## Build all, run a C++ trainer as 4 workers, kill one of them, and compare with an undisturbed run
	$(call needs,$(CXX) a C++17 compiler is needed)
	mkdir -p target/examples
	$(COMPILE) cpp_examples/digits_trainer/main.cpp -o target/examples/digits_trainer $(LINK) -Wl,-rpath,'$$ORIGIN/../release'
	RDZV=target/release/rdzv cpp_examples/run_demo.sh target/examples/digits_trainer

test: ## Everything but PyTorch (several minutes, most of them building)
	$(call needs,$(CARGO) it comes with Rust)
	$(call needs,gcc the C ABI is tested from C)
	$(call needs,git the patches of tests/planted are applied with it)
	$(call needs,$(CXX) the C++ header is tested with it)
	$(call needs,valgrind the C and C++ programs run under it; apt-get install valgrind)
ifneq ($(shell $(CARGO) nextest --version 2>/dev/null),)
	$(CARGO) nextest run --locked --workspace --no-fail-fast --test-threads $$((2 * $$(nproc) + 1))
else
	@echo "cargo-nextest is not installed: running the same tests with cargo test, one at a time"
	$(CARGO) test --locked --workspace --tests --no-fail-fast -- --test-threads=1
endif
	$(CARGO) test --locked --doc --workspace

check: ## Before each commit: format, lints, unit tests of the three crates, the repository's rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test $(CHECKED) --lib -- --test-threads=$$((2 * $$(nproc)))
	$(CARGO) test $(CHECKED) --test it -- tidy header

lint: ## Format, lints in each feature step, the fuzz targets, documentation, dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-core --no-default-features -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-core --no-default-features --features alloc -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-agent --no-default-features -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-rpc --no-default-features -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-ffi --no-default-features -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-ffi --no-default-features --features agent -- -D warnings
	$(CARGO) clippy --locked -p rendezvous-ffi --no-default-features --features rpc -- -D warnings
	$(CARGO) check --locked --manifest-path fuzz/Cargo.toml
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps
	tests/deny.sh $(DENY)
ifneq ($(shell command -v abidiff),)
	ffi/abi/compare.sh
else
	@echo "abidiff is not installed (abigail-tools): the C API was not compared with ffi/abi/baseline.abi.gz"
endif

# Two commands: in one, cargo would give the library the features of rdzv, and TLS with them.
lib: ## librendezvous.so and .a, and the program rdzv, in target/release; headers are in include/
	$(call needs,$(CARGO) it comes with Rust)
	$(call needs,$(CC) a C compiler links the shared library)
	$(CARGO) build --locked --release -p rendezvous-ffi $(FEATURES)
	$(CARGO) build --locked --release -p rendezvous-cli
	ffi/link.sh target/release

pages: ## Manual pages of rdzv and its completions for shells, in target/release/share
	$(call needs,$(CARGO) it comes with Rust)
	RDZV_PAGES=$(CURDIR)/target/release/share $(CARGO) test --locked -p rendezvous-cli --bin rdzv -- pages

# Fills in the numbers, and paths relative to the folder of the file: what was installed can be moved.
FILL = sed 's|@VERSION@|$(VERSION)|; s|@SERIES@|$(SERIES)|; s|@PREFIX@|$(call FROM_LIB,$(PREFIX))|; s|@INCLUDEDIR@|$(call FROM_LIB,$(includedir))|'
FROM_LIB = $(shell realpath -ms --relative-to=$(libdir)/pkgconfig $(1))

# `sudo make install` finds no cargo as a rule: it installs what `make lib pages` has built before.
install: $(if $(shell command -v $(CARGO)),lib pages) ## Copy library, headers, rdzv, pages and guides below PREFIX (/usr/local), staged in DESTDIR
	install -Dm644 -t $(DESTDIR)$(includedir) include/*.h include/*.hpp
	install -Dm644 -t $(DESTDIR)$(includedir)/rendezvous include/rendezvous/*
	install -Dm755 $(BUILT)/librendezvous.so $(DESTDIR)$(libdir)/librendezvous.so.$(VERSION)
	ln -sf librendezvous.so.$(VERSION) $(DESTDIR)$(libdir)/librendezvous.so.$(SERIES)
	ln -sf librendezvous.so.$(SERIES) $(DESTDIR)$(libdir)/librendezvous.so
	install -Dm644 -t $(DESTDIR)$(libdir) $(BUILT)/librendezvous.a
	install -d $(DESTDIR)$(libdir)/pkgconfig $(DESTDIR)$(libdir)/cmake/rendezvous
	$(FILL) ffi/package/rendezvous.pc.in > $(DESTDIR)$(libdir)/pkgconfig/rendezvous.pc
	$(FILL) ffi/package/rendezvousConfig.cmake.in > $(DESTDIR)$(libdir)/cmake/rendezvous/rendezvousConfig.cmake
	$(FILL) ffi/package/rendezvousConfigVersion.cmake.in > $(DESTDIR)$(libdir)/cmake/rendezvous/rendezvousConfigVersion.cmake
	install -m644 -t $(DESTDIR)$(libdir)/cmake/rendezvous ffi/package/rendezvousTargets.cmake
	install -Dm755 -t $(DESTDIR)$(bindir) $(BUILT)/rdzv
	install -Dm644 -t $(DESTDIR)$(datadir)/man/man1 $(BUILT)/share/man/man1/*
	install -Dm644 -t $(DESTDIR)$(datadir)/bash-completion/completions $(BUILT)/share/bash-completion/completions/rdzv
	install -Dm644 -t $(DESTDIR)$(datadir)/zsh/site-functions $(BUILT)/share/zsh/site-functions/_rdzv
	install -Dm644 -t $(DESTDIR)$(datadir)/fish/vendor_completions.d $(BUILT)/share/fish/vendor_completions.d/rdzv.fish
	install -Dm644 -t $(DESTDIR)$(datadir)/doc/rendezvous README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT
	install -Dm644 -t $(DESTDIR)$(datadir)/doc/rendezvous/docs docs/*.md

uninstall: ## Remove what `make install` has copied below PREFIX
	cd $(DESTDIR)$(includedir) && rm -rf rendezvous $(notdir $(wildcard include/*.h include/*.hpp))
	cd $(DESTDIR)$(libdir) && rm -rf cmake/rendezvous pkgconfig/rendezvous.pc librendezvous.a librendezvous.so librendezvous.so.$(SERIES) librendezvous.so.$(VERSION)
	cd $(DESTDIR)$(datadir) && rm -rf doc/rendezvous man/man1/rdzv.1 man/man1/rdzv-*.1 bash-completion/completions/rdzv zsh/site-functions/_rdzv fish/vendor_completions.d/rdzv.fish
	rm -f $(DESTDIR)$(bindir)/rdzv

examples: lib ## Compile every example of cpp_examples into target/examples
	mkdir -p target/examples
	$(COMPILE) cpp_examples/store_basics.cpp -o target/examples/store_basics $(LINK) -pthread -Wl,-rpath,'$$ORIGIN/../release'
	$(COMPILE) cpp_examples/rendezvous.cpp -o target/examples/rendezvous $(LINK) -pthread -Wl,-rpath,'$$ORIGIN/../release'
	$(COMPILE) cpp_examples/rendezvous_loop.cpp -o target/examples/rendezvous_loop $(LINK) -Wl,-rpath,'$$ORIGIN/../release'
	$(COMPILE) cpp_examples/parameter_server.cpp -o target/examples/parameter_server $(LINK) -pthread -Wl,-rpath,'$$ORIGIN/../release'
	$(COMPILE) cpp_examples/supervisor.cpp -o target/examples/supervisor $(LINK) -pthread -Wl,-rpath,'$$ORIGIN/../release'
	$(COMPILE) cpp_examples/run_ranks.cpp -o target/examples/run_ranks $(LINK) -Wl,-rpath,'$$ORIGIN/../release'
	$(COMPILE) cpp_examples/digits_trainer/main.cpp -o target/examples/digits_trainer $(LINK) -Wl,-rpath,'$$ORIGIN/../release'
	$(CC) -std=c11 $(CXXFLAGS) -Iinclude cpp_examples/event_loop.c -o target/examples/event_loop $(LINK) -Wl,-rpath,'$$ORIGIN/../release'

header: ## Write include/rendezvous.h and include/rendezvous/*.h anew from the doc comments in ffi/src
	RDZV_UPDATE_HEADER=1 $(CARGO) test -p rendezvous-tests --test it -- header::

interop: lib ## Everything against real PyTorch, installed once into target/torch-venv (RDZV_TORCH_SPEC names another)
	tests/interop/setup.sh
	$(CARGO) build --locked --release -p rendezvous-tests --bin rank --bin node
	$(COMPILE) tests/interop/cpp_rank.cpp -o target/cpp_rank $(LINK) -Wl,-rpath,'$$ORIGIN/release'
	$(COMPILE) tests/interop/cpp_meeting.cpp -o target/cpp_meeting $(LINK) -Wl,-rpath,'$$ORIGIN/release'
	$(COMPILE) tests/interop/cpp_observer.cpp -o target/cpp_observer $(LINK) -pthread -Wl,-rpath,'$$ORIGIN/release'
	RDZV=target/release/rdzv RDZV_CPP_RANK=target/cpp_rank RDZV_CPP_MEETING=target/cpp_meeting RDZV_CPP_OBSERVER=target/cpp_observer RDZV_RANK=target/release/rank RDZV_NODE=target/release/node target/torch-venv/bin/python tests/interop/run.py

bench: ## Criterion benches, then the tables beside the kernel's floor and PyTorch
	tests/interop/setup.sh
	$(CARGO) build --locked --release -p rendezvous-ffi
	$(CARGO) build --locked --release -p rendezvous-cli -p rendezvous-benches
	ffi/link.sh target/release
	$(CARGO) bench -p rendezvous-benches --features criterion
	$(PYTHON) benches/peers/run.py

fuzz: ## Each fuzz target for FUZZ_SECONDS, JOBS at a time; resumes, and adds up in fuzz/record.json; needs a nightly toolchain
	$(call needs,$(PYTHON) fuzz/run.py runs the targets)
	$(PYTHON) fuzz/run.py --seconds $(FUZZ_SECONDS) --jobs $(JOBS)

soak: ## The simulator over SEEDS further seeds of each world in JOBS processes; resumes, and adds up in tests/soak.json
	$(call needs,$(PYTHON) tests/soak.py runs the simulator in parallel)
	$(CARGO) build --locked --release -p rendezvous-tests --bin sim
	$(PYTHON) tests/soak.py --seeds $(SEEDS) --jobs $(JOBS)

siege: ## How long good clients wait beside strangers who cost as much as they can, twice as long at most (150 seconds, two cores); TLS=1: with TLS
	$(CARGO) build --locked --release -p rendezvous-cli
	$(CARGO) run --locked --release -p rendezvous-tests --bin siege -- --rdzv target/release/rdzv $(if $(TLS),--tls)

chaos: lib ## Jobs of real processes for MINUTES: processes are killed and stopped, links cut and slowed, disks and descriptors used up
	$(call needs,$(CXX) the job that counts is a C++ program)
	$(call needs,ip hosts are network namespaces; apt-get install iproute2)
	$(call needs,$(PYTHON) tests/chaos/run.py runs the jobs)
	mkdir -p target/chaos
	$(COMPILE) tests/chaos/counter.cpp -o target/chaos/counter $(LINK) -Wl,-rpath,'$$ORIGIN/../release'
	$(PYTHON) tests/chaos/run.py --minutes $(MINUTES)

sbom: ## Software bill of materials of the library and of rdzv (CycloneDX), in target/librendezvous.cdx.json
	$(call needs,$(PYTHON) tests/sbom.py writes it)
	CARGO=$(CARGO) $(PYTHON) tests/sbom.py

clean: ## Remove all that was built, PyTorch's environment too
	rm -rf target fuzz/target tests/nostd/*/target

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# SPDX-License-Identifier: GPL-2.0
#
# The commands of the project, which call scripts/. The kernel's build of the module reads Kbuild.

# KVER: the kernel of the lab; ARCH: amd64, arm64 or arm64-16k; KDIR: a prepared kernel tree instead of it.
# T, K: the suite of `make dev` and the pattern of its cases; SHARE: a directory for `make shell`.
# N, IN, CERT, LANGUAGE, HINT: of `make learn`, see scripts/learn.
# PREFIX, DESTDIR, MODULE_SIGN_KEY, MODULE_SIGN_CERT: of install, see scripts/install.
export KVER KDIR LANGUAGE HINT PREFIX DESTDIR MODULE_SIGN_KEY MODULE_SIGN_CERT

.DEFAULT_GOAL := all
.PHONY: all module userspace lab run dev test test-all test-long mutants test-hosts test-hca nightly test-debug \
	test-debug-long test-install selftest-debug bench results shell check size coverage rust-analyzer doc book pictures abi \
	learn install uninstall deb help clean lab-clean

all:
	@scripts/build all

module:
	@scripts/build module

userspace:
	@scripts/build userspace

lab:
	@scripts/lab all

run:
	@scripts/run

test:
	@scripts/test $(if $(LIMIT),--limit $(LIMIT)) test $(WITH)

test-all:
	@scripts/test all

test-hosts:
	@scripts/test hosts

test-hca:
	@scripts/test hca

nightly:
	@scripts/nightly $(if $(RESUME),--resume) $(if $(LIMIT),--limit $(LIMIT)) $(LANES)

test-debug:
	@scripts/test --kernel debug

test-debug-long:
	@scripts/test --kernel debug long

selftest-debug:
	@scripts/test --kernel debug selftest

bench: module userspace
	@scripts/bench

learn:
	@scripts/learn $(if $(CERT),--cert,$(N) $(IN))

results:
	@scripts/results $(if $(NOTE),--note '$(NOTE)') $(WHAT)

shell:
	@scripts/shell $(if $(SHARE),'$(SHARE)')

dev:
	@scripts/dev $(T) $(if $(K),'$(K)')

test-long:
	@scripts/test long

mutants: module userspace
	@tests/mutants/run $(if $(ONLY),--only $(ONLY)) $(if $(COUNT),--count $(COUNT) $(if $(TURN),--turn $(TURN))) \
		$(if $(GENERATED),--generated)

check:
	@scripts/check

size:
	@scripts/size

coverage: module userspace
	@scripts/coverage $(SUITES)

rust-analyzer:
	@scripts/rust-analyzer

doc:
	@scripts/doc

book:
	@scripts/book

pictures:
	@scripts/pictures

abi:
	@scripts/abi

install uninstall:
	@scripts/install $@

deb:
	@scripts/deb

test-install:
	@tests/install/run

help:
	@echo 'usage: make [TARGET] [KVER=version] [ARCH=arm64] [KDIR=directory]'
	@echo '  all (default)  builds module and userspace, for the running kernel where that is possible'
	@echo '  module         builds build/KVER/rust_ulp.ko, for the kernel of the lab or the tree KDIR'
	@echo '  userspace      builds the tools and examples in build/user/release'
	@echo '  lab            makes the VM from packages, in a cache outside the tree'
	@echo '  run            boots the VM and sends an RDMA Write between two hosts'
	@echo '  learn          lists the labs; N=3 lays lab 3 out, and after that builds and checks it (IN=c: in C;'
	@echo '                 HINT=2: a stronger hint; LANGUAGE=zh: in Chinese); CERT=1 writes what passed'
	@echo '  dev T=SUITE    builds changes and runs the suite in a guest that keeps running;'
	@echo '                 K=PATTERN: only the cases whose names match'
	@echo '  test           builds, and runs what a change of the module needs: gates, host tests, suites'
	@echo '                 (WITH="GROUP...": and these groups of test-all; LIMIT=S: begins nothing after S seconds)'
	@echo '  test-all       runs, too, the tests of the lab, crate, tools, documents, demos, benchmark,'
	@echo '                 other programs and adapter; scripts/test GROUP... runs some (--help)'
	@echo '  test-long      runs suites with large counts, and chaos, fuzzing and mutants'
	@echo '  mutants        plants bugs in the module that suites must find (ONLY=ID,... or COUNT=N [TURN=T])'
	@echo '                 (GENERATED=1: bugs that are made of the sources)'
	@echo '  test-hosts     runs the suites that need a second guest'
	@echo '  test-hca       runs suites on the adapter of the lab, with the rules of each driver'
	@echo '  nightly        runs everything on every kernel, in pieces, and prints a table (LANES="stock hca";'
	@echo '                 RESUME=1 goes on where it broke off; LIMIT=S)'
	@echo '  test-debug     runs the suites of the VM on a kernel with KASAN, lockdep, kmemleak, ...'
	@echo '  test-debug-long runs the longer ones of those suites'
	@echo '  selftest-debug checks that the debug kernel finds each planted bug'
	@echo '  bench          compares the performance with libibverbs and perftest'
	@echo '  results        prints the log of test runs; WHAT="test hosts" [NOTE=words] runs and logs them'
	@echo '  shell          opens a shell in the VM, with two hosts and the module; its /share is'
	@echo '                 build/share, or SHARE=DIR; scripts/vm enter opens a second one'
	@echo '  install        installs the build for the running kernel (PREFIX=/usr/local, DESTDIR=)'
	@echo '  uninstall      removes the installed files'
	@echo '  deb            builds packages of the tools and, for DKMS, of the module in build/deb'
	@echo '  test-install   tests all three in a Debian with systemd; takes half an hour'
	@echo '  check          checks formatting and lints of every language'
	@echo '  size           prints the size of the parts of the tree, beside their targets'
	@echo '  coverage       prints which lines of the module run in its suites (SUITES="25-ops 50-abi")'
	@echo '  rust-analyzer  writes build/rust-analyzer and .vscode, for an editor'
	@echo '  doc            builds the rustdoc of the module and of the crate in build/doc'
	@echo '  book           builds the documents as a book in build/book/html'
	@echo '  pictures       draws docs/pictures from their sources'
	@echo '  abi            generates files from rust_ulp.h, see scripts/abi'
	@echo '  clean          removes build/'
	@echo '  lab-clean      removes the cache of the lab'

clean:
	@rm -rf build

lab-clean:
	@scripts/lab clean

.DEFAULT:
	@echo 'make: no such target: $@' >&2
	@$(MAKE) -s --no-print-directory help >&2
	@exit 2

# SPDX-License-Identifier: GPL-2.0
#
# The commands of the project; the work is done by scripts/. (The kernel's build
# of the module reads Kbuild, not this.)

# KVER: which kernel of the lab; KDIR: a prepared kernel tree instead of it.
# T, K: the suite of `make dev` and the pattern of its cases; SHARE: a directory for `make shell`.
# PREFIX, DESTDIR, MODULE_SIGN_KEY, MODULE_SIGN_CERT: of install, see scripts/install.
export KVER KDIR PREFIX DESTDIR MODULE_SIGN_KEY MODULE_SIGN_CERT

.DEFAULT_GOAL := all
.PHONY: all module userspace lab run dev test test-long mutants test-hosts test-matrix test-debug \
	test-debug-long test-install selftest-debug bench results shell check rust-analyzer doc pictures abi \
	install uninstall deb help clean lab-clean

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
	@scripts/test

test-hosts:
	@scripts/test hosts

test-matrix:
	@scripts/matrix

test-debug:
	@scripts/test --kernel debug

test-debug-long:
	@scripts/test --kernel debug long

selftest-debug:
	@scripts/test --kernel debug selftest

bench: module userspace
	@scripts/bench

results:
	@scripts/results $(if $(NOTE),--note '$(NOTE)') $(WHAT)

shell: module userspace
	@scripts/vm shell $(if $(SHARE),--share "$(SHARE)") -- bash -lc 'two-hosts up; load-module; exec bash -i'

dev:
	@scripts/dev $(T) $(K)

test-long:
	@scripts/test long

mutants: module userspace
	@tests/mutants/run $(if $(ONLY),--only $(ONLY)) $(if $(COUNT),--count $(COUNT) --turn $(or $(TURN),$(shell git rev-list --count HEAD)))

check:
	@scripts/check

rust-analyzer:
	@scripts/rust-analyzer

doc:
	@scripts/doc

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
	@echo 'usage: make [TARGET] [KVER=version] [KDIR=directory]'
	@echo '  all (default)  module and userspace; the module for the running kernel, where it can be built here'
	@echo '  module         build/KVER/rust_ulp.ko, for the kernel of the lab or the tree KDIR'
	@echo '  userspace      build/user/release: the tools and examples'
	@echo '  lab            what the VM needs, from packages, cached outside the tree'
	@echo '  run            boots the VM and lets an RDMA Write cross between two hosts'
	@echo '  dev T=SUITE    builds what changed and runs that suite in a guest that stays up;'
	@echo '                 K=PATTERN: only its cases with such names'
	@echo '  test           all tests that need no special kernel, each once'
	@echo '  test-long      the same with large counts, chaos, fuzzing, mutants'
	@echo '  mutants        bugs in the module, each of which its suite must catch (ONLY=ID,... or COUNT=N TURN=T)'
	@echo '  test-hosts     two machines: the suites that need a second guest'
	@echo '  test-matrix    the suites of the VM on each kernel, and a table'
	@echo '  test-debug     the suites of the VM on a kernel with KASAN, lockdep, kmemleak, ...'
	@echo '  test-debug-long those of them that take longer'
	@echo '  selftest-debug planted bugs: that kernel finds each of them'
	@echo '  bench          compares with libibverbs and perftest'
	@echo '  results        prints the log of test runs; WHAT="test hosts" [NOTE=words] runs and logs them'
	@echo '  shell          the VM with two hosts and the module loaded; SHARE=DIR is its /share;'
	@echo '                 scripts/vm enter opens a second terminal in it'
	@echo '  install        what is built, for the running kernel (PREFIX=/usr/local, DESTDIR=)'
	@echo '  uninstall      takes that away again'
	@echo '  deb            packages of the tools and, for DKMS, of the module: build/deb'
	@echo '  test-install   tries all three in a Debian with systemd; takes half an hour'
	@echo '  check          formatting and lints of every language'
	@echo '  rust-analyzer  build/rust-analyzer and .vscode, for an editor'
	@echo '  doc            rustdoc of the module and of the crate: build/doc'
	@echo '  pictures       docs/pictures, from their sources'
	@echo '  abi            what is generated from rust_ulp.h, see scripts/abi'
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

# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What the suites share. Sourced, never run.
#
# A suite prints KTAP (Documentation/dev-tools/ktap.rst of the kernel): the version line, a line
# per test, diagnostics behind `#`, and the plan at its end, by `finish`, whose status is 0 only
# when all tests passed. A suite leaves the guest as it found it: module out, hosts down, its
# processes ended.

set -u
# What Python compiles stays out of the tree.
export LC_ALL=C PYTHONPYCACHEPREFIX=/run/pycache

ulp=${ULP:-/ulp}
vm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
module=$ulp/rust_ulp.ko
dev=/dev/rust_ulp
scratch=$(mktemp -d)
# The command that reaches h2, where the hosts are two machines.
second_machine=$(command -v peer) || second_machine=""
passed=0 failed=0 skipped=0
started=() rows=() reported=0 child="" matched=""
# What a deadline is multiplied by: five times how much slower this guest is than an idle one on the
# reference machine, which the guest measures at boot. A deadline tells a hang, and nothing else.
patience=${ULP_PATIENCE:-5}

# timeout SECONDS CMD...: timeout(1), with that patience.
timeout() {
	if [[ $1 =~ ^[0-9]+$ ]]; then set -- $(($1 * patience)) "${@:2}"; fi
	command timeout "$@"
}

# --- the reporter ---------------------------------------------------------------

echo "KTAP version 1"
[ -z "${ULP_SEED:-}" ] || echo "# ULP_SEED=$ULP_SEED"

# result "" | "not " TEXT: the line of one test.
result() { printf '%sok %d %s\n' "$1" $((passed + failed + skipped)) "$2"; }

# plain TEXT...: the text as one line without `#`, which begins a directive in KTAP.
plain() {
	local text=${*//$'\n'/ }
	printf '%s' "${text//\#/_}"
}

# show FILE...: prints files, or the standard input, as diagnostics.
show() { sed 's/^/# /' "$@"; }

# plan: how many tests there were.
plan() { printf '1..%d\n' $((passed + failed + skipped)); }

ok() { passed=$((passed + 1)) && result "" "$(plain "$1")"; }

# not_ok NAME WHY...: never `# SKIP` or `# TODO`, which would be a pass.
not_ok() {
	local name why
	name=$(plain "$1")
	shift
	why=$(plain "${*:-failed}" | cut -c1-600)
	[[ ! ${why^^} =~ ^[[:blank:]]*(SKIP|TODO|XFAIL) ]] || why="failed: $why"
	failed=$((failed + 1)) && result "not " "$name # $why"
}

# skip NAME WHY
skip() { skipped=$((skipped + 1)) && result "" "$(plain "$1") # SKIP $(plain "$2")"; }

# check NAME CMD...: passes when CMD does; the end of its output is the reason.
check() {
	local name=$1 out rc=0
	shift
	out=$("$@" 2>&1) || rc=$?
	if [ $rc = 0 ]; then
		ok "$name"
	else
		[ -z "$out" ] || tail -n 60 <<<"$out" | show -
		not_ok "$name" "status $rc: $(tail -n 5 <<<"$out")"
		return 1
	fi
}

# equal NAME GOT WANT
equal() {
	if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "got '$2', want '$3'" && false; fi
}

# wanted NAME: whether the pattern ULP_CASES, if there is one, lets this case run. With ULP_STOP=1 none runs after
# one that failed.
wanted() {
	# shellcheck disable=SC2053 # a pattern
	[[ $1 == ${ULP_CASES:-*} ]] && matched=1 && [[ ${ULP_STOP:-0} == 0 || $failed == 0 ]]
}

# each FUNCTION|"" NAME...: calls FUNCTION with each name that is wanted, or the functions so named.
each() {
	local function=$1 name
	shift
	for name; do
		# shellcheck disable=SC2086 # one word, or none
		! wanted "$name" || $function "$name"
	done
}

# parts PROGRAM NAME...: relays each wanted part of a test program, and looks at what it left.
parts() {
	local program=$1 name
	shift
	for name; do
		wanted "$name" || continue
		relay "$name" "$vm/$program" "$name"
		nothing_left "$name: nothing of ours is left"
	done
}

# relay NAME CMD...: CMD prints KTAP. Its tests are passed on as they come, with numbers of this
# suite, and counted here; its other output becomes diagnostics. It is a failure when CMD runs no
# test, ends without a plan, or with a plan or a status that its tests contradict. $relayed is how
# many tests it ran. Nothing happens when NAME is not wanted.
relay() {
	local name=$1 rc="" line from mark="# relay: the status is " good=0 bad=0 left=0 plan="" why=""
	shift
	relayed=0
	: >"$scratch/relay"
	wanted "$name" || return 0
	# A process that CMD left behind may hold the pipe open, so a line says that CMD has ended. A time limit
	# of read would lose bytes: bash forgets what it has read when its alarm interrupts it.
	exec {from}< <(
		"$@" 2>&1
		printf '%s%d\n' "$mark" $?
	)
	child=$!
	while [ -z "$rc" ] && { IFS= read -r -u "$from" line || [ -n "$line" ]; }; do
		if [[ $line == *"$mark"* ]]; then
			rc=${line##*"$mark"} line=${line%"$mark"*}
			[ -n "$line" ] || break
		fi
		printf '%s\n' "$line" >>"$scratch/relay"
		if [[ $line =~ ^(not )?ok\ [0-9]+(\ .*)?$ ]]; then
			if [ -n "${BASH_REMATCH[1]}" ]; then
				failed=$((failed + 1)) bad=$((bad + 1))
			elif [[ $line == *"# SKIP"* ]]; then
				skipped=$((skipped + 1)) left=$((left + 1))
			else
				passed=$((passed + 1)) good=$((good + 1))
			fi
			result "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]# }"
		elif [[ $line =~ ^1\.\.([0-9]+)$ ]]; then
			plan+=${plan:+ and }${BASH_REMATCH[1]}
		elif [ "$line" != "KTAP version 1" ]; then
			printf '# %s\n' "${line#\# }"
		fi
	done
	exec {from}<&-
	wait "$child" || rc=${rc:-$?}
	rc=${rc:-0}
	child=""
	relayed=$((good + bad + left))
	if [ -z "$plan" ]; then
		why="it ended with status $rc after $relayed tests, and printed no plan"
	elif [ "$plan" != $relayed ]; then
		why="it ran $relayed tests and planned $plan"
	elif [ $relayed = 0 ]; then
		why="it ran no test"
	elif [ "$rc" != 0 ] && [ $bad = 0 ]; then
		why="status $rc, and no test failed"
	elif [ "$rc" = 0 ] && [ $bad != 0 ]; then
		why="status 0 with $bad failed tests"
	fi
	[ -z "$why" ] || not_ok "$name" "$why: $(tail -n 3 "$scratch/relay")"
}

# --- hosts and processes --------------------------------------------------------

# The devices of h1 and h2: Soft-RoCE, or the lab's adapter.
# shellcheck disable=SC2034 # for the suites
dev1=${ULP_HCA:+hca1} dev1=${dev1:-rxe1} dev2=${dev1%1}2

# unplug DEVICE: takes it away.
unplug() {
	if [ -z "${ULP_HCA:-}" ]; then timeout 20 rdma link del "$1"; else echo 1 >"/sys/class/infiniband/$1/device/remove"; fi
}

# is_roce: the device of h1 is of RoCE, so that two ends can meet over TCP and connect their queue pairs.
is_roce() {
	[ "$(cat "/sys/class/infiniband/$dev1/ports/1/link_layer")" = Ethernet ] &&
		! grep -q RNIC "/sys/class/infiniband/$dev1/node_type"
}

# found: what the lab's adapter counts, and what it said of it.
found() {
	printf '%s %s ' "$(cat /sys/module/ulp_hca/parameters/dma_faults)" "$(cat /sys/module/ulp_hca/parameters/broken_rules)"
	log_since | grep -E 'ulp_hca .*(DMA fault|rule broken)' | head -n 3
}

# two-hosts up|down: with ULP_HCA on the lab's adapter, with the rules of the driver that it names. They
# go only when the adapter has seen no DMA fault and no broken rule.
[ -z "${ULP_HCA:-}" ] || two-hosts() {
	local said="0 0 "
	[ "$1" = up ] || [ ! -d /sys/module/ulp_hca ] || said=$(found)
	"$vm/../hca/hosts" "$@" || return
	[ "$said" = "0 0 " ] || {
		echo "DMA faults, broken rules: $said"
		return 1
	}
}

# in_host h1 CMD...
in_host() {
	if [[ ${2:-} = timeout && ${3:-} =~ ^[0-9]+$ ]]; then
		set -- "$1" timeout $(($3 * patience)) "${@:4}"
	fi
	if [ "$1" = h2 ] && [ -n "$second_machine" ]; then
		peer ip netns exec "$@" </dev/null
	else
		ip netns exec "$@"
	fi
}

# there FUNCTION ARG...: calls a function of this file on the second machine, and prints KTAP.
there() {
	# shellcheck disable=SC2016 # for the shell there
	peer bash -c '. /ulp/tests/vm/lib.sh; trap - EXIT; log_id=$1; shift; "$@"; rc=$?; plan; exit $rc' \
		there "${log_id:-}" "$@" </dev/null
}

# py CODE: Python with all of ulp.py imported.
py() { PYTHONPATH=$vm timeout "${py_seconds:-40}" python3 -c "from ulp import *
$1"; }

# start NAME CMD...: runs CMD in the background, its output in $scratch/NAME.
# Its process is $last, and is killed at the end if it is still there.
start() {
	local name=$1
	shift
	# Nobody is to read there what an earlier one of that name has printed.
	: >"$scratch/$name"
	"$@" >"$scratch/$name" 2>&1 &
	last=$!
	started+=("$last")
}

# start_in NAME HOST CMD...: the same in a host; $last is the program itself, and no shell of ours.
start_in() { start "$1" ip netns exec "$2" "${@:3}"; }

# content LABEL NAME: what was started last ends well; it has printed $scratch/NAME. (In no check: that is another shell,
# whose child it is not.)
content() {
	wait "$last"
	equal "$1" $? 0 || show "$scratch/$2"
}

# interrupted LABEL PROCESS: for what was started, Ctrl-C is a good end.
interrupted() {
	kill -INT "$2"
	wait "$2"
	equal "$1" $? 0
}

# says NAME PATTERN: $scratch/NAME has a line like that; else it is the reason.
says() { grep -qE -- "$2" "$scratch/$1" || {
	cat "$scratch/$1"
	return 1
}; }

# listens HOST [PORT]: somebody listens there.
listens() { in_host "$1" ss -Hltn "sport = :${2:-18515}" | grep -q .; }

# until_true SECONDS CMD...: tries CMD until it succeeds.
until_true() {
	local end=$((SECONDS + $1 * patience))
	shift
	until "$@"; do
		((SECONDS < end)) || return 1
		sleep 0.1
	done
}

# --- the module ---------------------------------------------------------------

# load FILE [PARAM=VALUE...]: what it depends on first, as insmod does not.
load() {
	local depends
	depends=$(modinfo -F depends "$1" | tr , ' ')
	# shellcheck disable=SC2086
	[ -z "$depends" ] || modprobe -a $depends || return
	timeout 20 insmod "$@"
}

load_module() { load "$module" "$@" && [ -c "$dev" ]; }

is_loaded() { [ -d /sys/module/rust_ulp ]; }

unload_module() { timeout 20 rmmod rust_ulp; }

# still_there: the module, and the hosts, a line each.
still_there() {
	is_loaded && echo module
	ls /run/netns 2>/dev/null
}

# References to the module, as /proc/modules counts them.
module_refs() { awk '$1 == "rust_ulp" { print $3 }' /proc/modules; }

# What the module and its sample own of verbs objects, one a line: kernel-owned
# objects carry the name of their module. Nothing, when all is released.
our_objects() {
	local kind
	# The core has one of each for management: when there is no more, none is ours.
	local said
	said=$(rdma resource) || echo "rdma resource: status $?"
	grep -qvE '^$|: pd 1 cq 1 qp 1 cm_id [0-9]+ mr 0 ctx [0-9]+ srq 0 *$' <<<"$said" || return 0
	for kind in qp cq pd mr srq; do
		said=$(rdma resource show $kind) || echo "rdma resource show $kind: status $?"
		grep -E '\bcomm \[?(rust_ulp|rdma_ping|lab_[a-z_]+)\]?' <<<"$said" | sed "s/^/$kind: /"
	done
}

# --- the kernel's log ----------------------------------------------------------

# What any kernel may say that means trouble, as tests/vm/trouble has it, and lines of ours that are allowed:
# those of the loader about a module that is not signed, and the one hello.
trouble=$(sed -n -E 's/^(begins|within|suite) //p' "$(dirname "${BASH_SOURCE[0]}")/trouble" | paste -sd'|' -)
# What the loader says of any module like this, and what KUnit says of its suites where it runs.
allowed='rust_ulp: (loading out-of-tree module taints kernel|module verification failed)'
allowed+='|# (Subtest: )?rust_ulp_|(not )?ok [0-9]+ rust_ulp_|# module: rust_ulp'

# log_mark: from here on. log_since: what came after, without the times.
log_mark() {
	log_id=mark-$$-$RANDOM$RANDOM reported=0
	echo "tests: $log_id" >/dev/kmsg
	[ -z "$second_machine" ] || peer sh -c "echo 'tests: $log_id' >/dev/kmsg" </dev/null
}
log_since() {
	dmesg | sed 's/^\[[^]]*\] *//' | awk -v mark="tests: $log_id" '
		found { print }
		index($0, mark) { found = 1 }
		END { if (!found) print "WARNING: the mark of the suite is no longer in the log" }'
}

# unused REFS: no object of ours, and so many references to the module, if it is there.
unused() { [ -z "$(our_objects)" ] && { ! is_loaded || [ "$(module_refs)" = "$1" ]; }; }

# log_quiet NAME: no trouble since the mark, and not a word of ours.
log_quiet() {
	local bad
	bad=$(log_since | grep -E "$trouble|rust_ulp" | grep -vE "$allowed" | head -n 5)
	if [ -z "$bad" ]; then ok "$1"; else not_ok "$1" "the kernel's log says: $bad" && false; fi
}

# nothing_left NAME: no object of ours, no reference to the module but $2 (0). A worker of the kernel puts files that
# an io_uring held.
nothing_left() {
	local left
	until_true 2 unused "${2:-0}" || :
	left=$(our_objects)
	if [ -n "$left" ]; then
		not_ok "$1" "left behind: $(head -n 4 <<<"$left")" && false
	elif is_loaded && [ "$(module_refs)" != "${2:-0}" ]; then
		not_ok "$1" "the module has $(module_refs) references, not ${2:-0}" && false
	else
		ok "$1"
	fi
}

# pairs: the pairs of devices between which rdma_ping has sent, in the order of the log, and what failed with its errno.
pairs() {
	log_since | sed -nE -e 's/^rdma_ping: (\S+) to (\S+): send [1-9][0-9]* write [1-9][0-9]* read [1-9][0-9]* ns$/\1-\2/p' \
		-e 's/^rdma_ping: (\S+) to (\S+): ([A-Z]+)$/\1-\2:\3/p' | xargs
}

# --- the table ----------------------------------------------------------------

# row NAME COUNT BEGIN [REPORTS]: a row of the table that a suite ends with: rounds or
# operations, what the log has reported since the last row or mark (REPORTS, where somebody
# else tells these from what is to be expected there), objects that are left, seconds since
# $SECONDS was BEGIN.
row() {
	local all left
	all=$(log_since | grep -E "$trouble" | grep -cvE "$allowed")
	left=$(our_objects | grep -c .)
	rows+=("$(printf '%-46s %10s %7s %5s %7s' "$1" "$2" "${4:-$((all - reported))}" "$left" $((SECONDS - $3)))")
	reported=$all
}

table() {
	[ ${#rows[@]} = 0 ] && return
	printf '# %-46s %10s %7s %5s %7s\n' "case group, on $(uname -r)" number reports leaks seconds
	printf '# %s\n' "${rows[@]}"
}

# --- the begin and the end of most suites ------------------------------------

set_up() {
	log_mark
	check "two hosts" two-hosts up || finish
	check "insmod" load_module || finish
}

# tear_down NAME: NAME is what the last test is called.
tear_down() {
	check "rmmod" unload_module
	log_quiet "$1"
	finish
}

# --- the end -----------------------------------------------------------------

# kill_tree PID: kills it and all processes that come from it. The lab's build root has no pkill.
kill_tree() {
	local stat line parent
	kill -STOP "$1" 2>/dev/null || return 0
	for stat in /proc/[0-9]*/stat; do
		# The name, in parentheses, may have anything in it; state and parent follow.
		{ read -r line <"$stat"; } 2>/dev/null || continue
		read -r _ parent _ <<<"${line##*) }"
		[ "$parent" != "$1" ] || kill_tree "$(basename "${stat%/stat}")"
	done
	kill -KILL "$1"
}

clean_up() {
	# A trap runs with the assignments of the command that it interrupts, such as `IFS= read`.
	local pid IFS=$' \t\n'
	[ -z "$child" ] || kill_tree "$child"
	for pid in "${started[@]}"; do
		kill -KILL "$pid" 2>/dev/null && wait "$pid" 2>/dev/null
	done
	two-hosts down >/dev/null 2>&1
	is_loaded && unload_module
	[ ! -d /sys/module/rdma_ping ] || timeout 20 rmmod rdma_ping
	[ ! -d /sys/module/ulp_hca ] || timeout 20 rmmod ulp_hca
	[ -z "$second_machine" ] || there eval 'is_loaded && unload_module' >/dev/null 2>&1
	rm -rf "$scratch"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP

# finish: the table, the plan, and the end.
finish() {
	[ -z "${ULP_HCA:-}" ] || check "the hosts go, and the adapter has seen no broken rule" two-hosts down
	table
	if [ -n "${ULP_CASES:-}" ] && [ -z "$matched" ]; then
		not_ok "ULP_CASES" "no case of this suite matches '$ULP_CASES'"
	elif [ $((passed + failed + skipped)) = 0 ]; then
		not_ok "${0##*/}" "it ran no test"
	fi
	plan
	printf '# %s: %d passed, %d failed, %d skipped\n' "${0##*/}" $passed $failed $skipped
	[ $failed = 0 ]
	exit
}

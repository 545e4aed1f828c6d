# shellcheck shell=bash disable=SC2016,SC2034
# SPDX-License-Identifier: GPL-2.0
#
# What the suites of two machines share, and lib.sh. Sourced, never run.
# shellcheck source=tests/vm/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

hosts_port=18700

# begin: two hosts, the module on the first only. with_module: on both.
begin() {
	check "the second machine is there" test -n "$second_machine" || finish
	check "it answers" peer true || finish
	log_mark
	check "two hosts" two-hosts up || finish
	check "insmod here" load_module || finish
}
with_module() { check "insmod there" there load_module || finish; }

# both_clean NAME: nothing of ours is left on either.
both_clean() {
	nothing_left "$1: nothing of ours is left here"
	relay "$1, there" there nothing_left "$1: nothing of ours is left there"
}

# conversation HERE THERE [LISTENER]: the two kinds of ends talk; h1, or h2 if it is the
# listener, waits for the other.
conversation() {
	local here=$1 there=$2 at=${3:-h1} rc=0 words
	hosts_port=$((hosts_port + 1))
	words="$here here, $there there, $at listens"
	if [ "$at" = h1 ]; then
		start listener in_host h1 timeout 40 "$vm/stock_peer.py" "$here" listen 10.9.0.1:$hosts_port rxe1
		relay "$words" in_host h2 timeout 40 "$vm/stock_peer.py" "$there" connect 10.9.0.1:$hosts_port rxe2
	else
		start listener in_host h2 timeout 40 "$vm/stock_peer.py" "$there" listen 10.9.0.2:$hosts_port rxe2
		relay "$words" in_host h1 timeout 40 "$vm/stock_peer.py" "$here" connect 10.9.0.2:$hosts_port rxe1
	fi
	wait "$last" || rc=$?
	relay "$words, the listener" sh -c 'cat "$1"; exit "$2"' sh "$scratch/listener" $rc
}

# end: modules out, and both kernels quiet.
end() {
	check "rmmod here" unload_module
	check "rmmod there" there unload_module
	log_quiet "all that without a word in the log here"
	relay "the log there" there log_quiet "nor there"
	finish
}

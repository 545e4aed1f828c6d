#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#? starter fails: boots
# A job of CI: boots a VM, runs ib_write_bw between two hosts in it, and fails below a bound.
#     bash answer.sh LEAST          on the machine of the CI; LEAST: MiB/s that writes of 64 KiB have to reach
#     bash answer.sh guest LEAST    the same in the VM
# RUST_ULP is a checkout of rust_ulp, whose scripts/vm boots VMs.
set -eu

# in_guest LEAST: two hosts, a server and a client of ib_write_bw, and the verdict.
in_guest() {
	local work server limit
	work=$(mktemp -d)
	# Seconds that a tool may take: more where the VM is slow.
	limit=$((24 * ${ULP_PATIENCE:-5}))
	# learner 2: run the server in one host and the client in the other; the client's output is $work/client
	#? two-hosts up
	#? : >"$work/client"
	two-hosts up
	timeout "$limit" ip netns exec h2 ib_write_bw -d rxe2 -x 1 -s 65536 -n 64 -u 20 -F >"$work/server" 2>&1 &
	server=$!
	# shellcheck disable=SC2064
	trap "kill $server 2>/dev/null || :" EXIT
	while kill -0 $server 2>/dev/null && [ -z "$(ip netns exec h2 ss -Hltn 'sport = :18515')" ]; do sleep 0.1; done
	timeout "$limit" ip netns exec h1 ib_write_bw -d rxe1 -x 1 -s 65536 -n 64 -u 20 -F 10.9.0.2 >"$work/client" 2>&1 ||
		cat "$work/server"
	# end 2
	cat "$work/client"
	# learner 3: fail when no line has a measurement, and when the average, its fourth word, is below $1
	#? echo "at least $1 MiB/s are wanted"
	awk -v least="$1" '$1 == 65536 { found = 1; low = $4 < least } END { exit !found || low }' "$work/client"
	# end 3
}

[[ ${!#} =~ ^[0-9]+(\.[0-9]+)?$ ]] || {
	echo "LEAST is a number of MiB/s" >&2
	exit 2
}
if [ "$1" = guest ]; then
	in_guest "$2"
	exit
fi
# learner 1: boot a VM that has this folder as /share, and let it run this file
#? exec bash "$0" guest "$1"
exec "$RUST_ULP/scripts/vm" run --share "$(dirname "$0")" -- bash "/share/$(basename "$0")" guest "$1"
# end 1

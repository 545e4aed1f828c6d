# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What two-hosts here, that of two machines (scripts/peer/two-hosts) and that of the lab's adapter
# (tests/hca/hosts) share. Sourced, never run.

# new_host N: the network namespace hN.
new_host() {
	ip netns add "h$1"
	ip netns exec "h$1" sysctl -q -w net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0
	ip -n "h$1" link set lo up
}

# addresses N: wN gets its addresses, and goes up.
addresses() {
	ip -n "h$1" addr add "10.9.0.$1/24" dev "w$1"
	ip -n "h$1" addr add "fd09::$1/64" dev "w$1" nodad
	ip -n "h$1" link set "w$1" up
}

# has_gids DEVICE N: the device has the GIDs of both addresses of wN, among its first ones (there are a
# thousand entries, which take their time to read).
has_gids() {
	local gids
	gids=$(cat /sys/class/infiniband/"$1"/ports/1/gids/? 2>/dev/null) || return 1
	[[ $gids == *0000:0000:0000:0000:0000:ffff:0a09:000$2* ]] &&
		[[ $gids == *fd09:0000:0000:0000:0000:0000:0000:000$2* ]]
}

# rxe_ready N: rxeN has them, and its first GID leads to itself. That one is there at once; its route comes
# when the kernel's link watch sees the carrier, which it looks for once a second (linkwatch_schedule_work()
# in net/core/link_watch.c).
rxe_ready() {
	has_gids "rxe$1" "$1" &&
		grep -q v2 /sys/class/infiniband/"rxe$1"/ports/1/gid_attrs/types/1 &&
		ip -n "h$1" -6 route show table local dev "w$1" | grep -q "^local fe80:"
}

# wait_for SECONDS WORDS CMD...: tries CMD until it succeeds; or ends with WORDS, which say what is not there.
wait_for() {
	local i
	for ((i = 0; i <= 10 * $1; i++)); do
		! "${@:3}" || return 0
		sleep 0.1
	done
	echo "$2, after $1 s" >&2
	exit 1
}

# rxe_link N: rxeN, if it is not there. rxe_wait SECONDS N: until it is ready.
rxe_link() { [ -e /sys/class/infiniband/"rxe$1" ] || ip netns exec "h$1" rdma link add "rxe$1" type rxe netdev "w$1"; }
rxe_wait() { wait_for "$1" "two-hosts: rxe$2 has no RoCE v2 GID of 10.9.0.$2, or no route to itself" rxe_ready "$2"; }

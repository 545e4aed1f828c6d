# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: GPL-2.0
#
# What the lab's scripts share. Sourced, never run.
#
# The cache holds one directory per product. Each is built under $cache/tmp,
# gets a .stamp with the hash of what it was made from, and is renamed into
# place, so a product either is complete or is not there.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# An ordinary user lacks where chroot and modinfo are.
PATH=$PATH:/usr/sbin:/sbin
cache=${RUST_ULP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rust_ulp}

# The kernel that everything is tried against first, the one that comes after it,
# and the one of the suite after $suite. When the archive has moved on, the lab takes
# a successor and says so, see successor().
suite=trixie
# ARCH is the end of its version, unless KVER has one; a kernel developer's environment may have
# the kernel's word for it. arm64-16k has pages of 16 KiB.
case ${KVER:-}:${ARCH:-} in
*-arm64:*) ending=arm64 ;;
*-arm64-16k:*) ending=arm64-16k ;;
sid:* | *-amd64:* | *: | *:x86 | *:x86_64) ending=amd64 ;;
*) ending=$ARCH ;;
esac
pinned_kver=7.2.12+deb13-$ending
next_kver=7.3.4+deb13-$ending
sid_kver=7.2.13+deb14-amd64

# arch_of KVER: the architecture, as Debian calls it, of a kernel.
arch_of() {
	case $1 in
	*-arm64 | *-arm64-16k) echo arm64 ;;
	*) echo amd64 ;;
	esac
}

# cache_of KVER: a kernel of another suite or architecture lives in a cache of its own, with
# the compilers that it was built with. Only the guest's root is that of $suite for all.
base_cache=$cache
cache_of() {
	case $1 in
	*+deb13-arm64 | *+deb13-arm64-16k) echo "$base_cache/arm64" ;;
	'' | *+deb13[-+]*) echo "$base_cache" ;;
	*) echo "$base_cache/sid" ;;
	esac
}

# use_kver KVER: from here on everything is about that kernel.
use_kver() {
	cache=$(cache_of "$1")
	suite=trixie
	[ "$cache" != "$base_cache/sid" ] || suite=sid
	arch=$(arch_of "$1")
}

# The programs that are built for the kernels of that architecture.
programs() {
	case $arch in
	arm64) echo "$repo/build/user/aarch64-unknown-linux-gnu/release" ;;
	*) echo "$repo/build/user/release" ;;
	esac
}

say() { printf '%s\n' "$*" >&2; }
die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# language: zh or en, by the first variable with a value, as in scripts/learn.
language() {
	local name
	for name in LANGUAGE LC_ALL LC_MESSAGES LANG; do
		case ${!name:-} in
		'') ;;
		zh*) echo zh && return ;;
		*) break ;;
		esac
	done
	echo en
}

# either ENGLISH CHINESE: the words in the user's language.
either() { if [ "$(language)" = zh ]; then echo "$2"; else echo "$1"; fi; }

# usage_error WORDS: what was wrong, then how it goes; exits 2.
usage_error() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	usage >&2
	exit 2
}

# show_help "$@": prints how it goes, and ends the script, where the first argument asks for that.
show_help() {
	case ${1:-} in
	-h | --help)
		usage
		exit 0
		;;
	esac
}

# need_value OPTION COUNT: an option at the end of the line lacks its value.
need_value() { [ "$2" -ge 2 ] || usage_error "$1 needs a value"; }

is_number() { [[ $1 =~ ^[1-9][0-9]{0,6}$ ]]; }
is_kver() { [[ $1 =~ ^[0-9]+\.[0-9]+[A-Za-z0-9.+~-]*$ ]]; }

# phase WORDS: one line about what the running step, $step_label, does now. Steps run side by side.
phase() { printf '  %-10s %4ds  %s\n' "$step_label" $((SECONDS - step_start)) "$*" >&"${phase_fd:-2}"; }

# is_alive PID: whether that process is there and has not ended.
is_alive() {
	local line
	{ read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
	[[ ${line##*) } != Z* ]]
}

# descendants PID...: these processes and all that come from them, the oldest first.
descendants() {
	local stat line parent pid
	local -A children=()
	for stat in /proc/[0-9]*/stat; do
		# The name, in parentheses, may have anything in it; state and parent follow.
		{ read -r line <"$stat"; } 2>/dev/null || continue
		pid=${stat#/proc/}
		line=${line##*) }
		parent=${line#* }
		children[${parent%% *}]+=" ${pid%/stat}"
	done
	while [ $# -gt 0 ]; do
		echo "$1"
		# shellcheck disable=SC2086
		set -- "${@:2}" ${children[$1]:-}
	done
}

# signal SIGNAL PID...: those that are there get it.
signal() { kill "-$1" "${@:2}" 2>/dev/null || :; }

# living PID...: those that have not ended.
living() {
	local pid
	for pid; do ! is_alive "$pid" || echo "$pid"; done
}

# end_tree PID...: ends these processes and all that come from them: by SIGTERM, those that are there ten seconds
# later by SIGKILL. What one of them starts to clean up is let alone until then.
end_tree() {
	local pids=() found deadline=$((SECONDS + 10))
	# Stopped, they start no other meanwhile.
	while mapfile -t found < <(descendants "$@") && [ "${#found[@]}" != "${#pids[@]}" ]; do
		pids=("${found[@]}")
		signal STOP "${pids[@]}"
	done
	signal TERM "${pids[@]}"
	signal CONT "${pids[@]}"
	while mapfile -t pids < <(living "${pids[@]}") && [ ${#pids[@]} -gt 0 ]; do
		if [ $SECONDS -ge $deadline ]; then
			mapfile -t pids < <(descendants "${pids[@]}")
			signal KILL "${pids[@]}"
			return
		fi
		sleep 0.1
	done
}

# guard ARG...: runs this script with ARG in a process that it watches, and exits with its status. A signal that
# ends this shell (Ctrl-C) ends all that came from that process, guests too; then `when_stopped` runs, where the
# script has that function. In that process it does nothing.
guard() {
	local child status=0
	[ -z "${RUST_ULP_GUARDED:-}" ] || return 0
	(
		export RUST_ULP_GUARDED=1
		# The lock is this shell's alone: guests may stay up for longer.
		[ -z "${checkout_fd:-}" ] || exec {checkout_fd}>&-
		# In a session of its own, so that what a terminal or timeout(1) sends to all comes to this shell alone,
		# which can still see who came from whom.
		exec setsid "$BASH" "$0" "$@"
	) <&0 &
	child=$!
	# shellcheck disable=SC2064
	trap "guard_end $child 130" INT
	# shellcheck disable=SC2064
	trap "guard_end $child 143" TERM HUP
	wait $child || status=$?
	exit $status
}

guard_end() {
	trap '' INT TERM HUP
	say "${0##*/}: ending what was started"
	end_tree "$1"
	! declare -F when_stopped >/dev/null || when_stopped
	exit "$2"
}

# checkout_lock WHAT: one run at a time builds and boots in this checkout. Says which one it waits for: the file
# has the holder's PID and its WHAT. Held until this shell ends; what it runs does not lock again.
checkout_lock() {
	local file=$repo/build/.run-lock
	[ "${RUST_ULP_RUN_LOCK:-}" != held ] || return 0
	mkdir -p "$repo/build"
	exec {checkout_fd}<>"$file"
	if ! flock -n "$checkout_fd"; then
		say "another run is at work in this checkout, process $(cat "$file"): waiting for its end"
		flock "$checkout_fd"
	fi
	echo "$$ $1" >"$file"
	export RUST_ULP_RUN_LOCK=held
}

# need_disk DIRECTORY GB WHAT: ends the script when less is free where the directory is or will be.
need_disk() {
	local dir=$1 free
	while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
	free=$(($(df -Pk "$dir" | awk 'NR == 2 { print $4 }') / 1048576))
	[ "$free" -ge "$2" ] || die "$3 needs $2 GB in $1, and $free GB are free there (RUST_ULP_CACHE moves the lab's cache)"
}

# lock NAME [-s]: waits for the lock, at most an hour; held until the shell
# that took it ends, and by what it runs.
lock() {
	local fd
	mkdir -p "$cache/lock"
	exec {fd}>>"$cache/lock/$1"
	flock -n ${2:+"$2"} "$fd" && return
	say "waiting for another run of the lab ($1)"
	flock -w 3600 ${2:+"$2"} "$fd" || die "$1 is still being built after an hour; see $cache/log"
}

# with_root CMD: root's rights over the cache, for an ordinary user in a user
# namespace where root is the caller. What CMD mounts vanishes with it.
with_root() {
	if [ "$(id -u)" = 0 ]; then
		unshare --mount "$@"
	else
		unshare --user --map-root-user --map-auto --mount "$@"
	fi
}

remove() { [ ! -e "$1" ] || with_root rm -rf --one-file-system "$1"; }

fresh() { [ "$(cat "$1/.stamp" 2>/dev/null)" = "$2" ]; }

# step NAME LIMIT WORDS INPUTS FUNCTION [ARG...]: makes $cache/NAME by calling
# FUNCTION with an empty directory and ARG, unless what is there was made from
# the same inputs. LIMIT is the longest it may take, in seconds. When it fails,
# explain_FUNCTION LOG, where there is one, says why.
step() {
	local name=$1 limit=$2 words=$3 inputs=$4 fn=$5
	shift 5
	local dest=$cache/$name flat=${name//\//_} step_label=${name%%/*} key new log pid rc=0 told=0
	key=$(printf '%s\n' "$inputs" "$(declare -f "$fn")" | sha256sum | cut -c1-16)
	fresh "$dest" "$key" && return
	# Only asked whether it is there?
	[ -z "${step_query:-}" ] || return 1
	(
		lock "$flat"
		fresh "$dest" "$key" && exit 0
		need_disk "$cache" "${step_disk:-2}" "$name"
		new=$cache/tmp/$flat log=$cache/log/$flat.log
		mkdir -p "$cache/tmp" "$cache/log" "$(dirname "$dest")"
		remove "$new"
		remove "$new.old"
		mkdir "$new"
		say "$words$(either " (log: $log)" "（日志：$log）")"
		step_start=$SECONDS
		exec {phase_fd}>&2
		set -m
		("$fn" "$new" "$@") >"$log" 2>&1 </dev/null &
		pid=$!
		set +m
		# shellcheck disable=SC2064
		trap "kill -TERM -- -$pid 2>/dev/null; wait $pid; exit 130" INT TERM HUP
		while kill -0 $pid 2>/dev/null; do
			sleep 0.5
			if ((SECONDS - step_start > limit)); then
				kill -TERM -- -$pid
				wait $pid || :
				rm -rf "${new:?}/.failed"
				die "$name: not done after $limit seconds, given up; see $log"
			fi
			if ((SECONDS - step_start >= told + 30)); then
				told=$((SECONDS - step_start))
				phase "... $(tail -n 1 "$log" | tr -d '\r' | cut -c1-90)"
			fi
		done
		wait $pid || rc=$?
		trap - INT TERM HUP
		if [ $rc != 0 ]; then
			tail -n 20 "$log" | sed 's/^/  | /' >&2
			remove "$new"
			! declare -F "explain_$fn" >/dev/null || "explain_$fn" "$log"
			die "$name failed (status $rc); the whole log is $log"
		fi
		echo "$key" >"$new/.stamp"
		[ ! -e "$dest" ] || mv -T "$dest" "$new.old"
		mv -T "$new" "$dest"
		remove "$new.old"
		phase "$(either "done" 完成)"
	)
}

# in_root ROOT [SOURCE:TARGET...] -- CMD...: runs CMD in the root with the
# directories bound. The mounts live in a namespace of their own and vanish
# with the command. $root_env, an array of NAME=VALUE, is all its environment.
root_env=()
root_cwd=/
root_user=0:0
in_root() {
	local ca=${CARGO_HTTP_CAINFO:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
	local flags=(--mount)
	[ "$(id -u)" = 0 ] || flags+=(--user --map-root-user --map-auto)
	unshare "${flags[@]}" bash -eu -c "$(declare -f enter_root); enter_root \"\$@\"" lab \
		"$ca" "$root_cwd" "$root_user" "${#root_env[@]}" "${root_env[@]}" "$@"
}

# In the new namespace: mounts, then the command in place of the shell.
enter_root() {
	local ca=$1 cwd=$2 user=$3 n=$4 root d
	local envs=("${@:5:n}")
	shift $((4 + n))
	root=$1
	shift
	for d in proc sys dev; do
		mount --rbind "/$d" "$root/$d"
	done
	mount -t tmpfs -o mode=1777 tmp "$root/tmp"
	touch "$root/etc/resolv.conf" 2>/dev/null || :
	[ ! -e /etc/resolv.conf ] || mount --bind "$(readlink -f /etc/resolv.conf)" "$root/etc/resolv.conf"
	[ ! -e /etc/hosts ] || mount --bind /etc/hosts "$root/etc/hosts"
	if [ -f "$ca" ] && [ -f "$root/etc/ssl/certs/ca-certificates.crt" ]; then
		mount --bind "$ca" "$root/etc/ssl/certs/ca-certificates.crt"
	fi
	while [ "$1" != -- ]; do
		mkdir -p "$root${1#*:}"
		mount --bind "${1%%:*}" "$root${1#*:}"
		shift
	done
	shift
	# shellcheck disable=SC2016
	exec chroot --userspec="$user" --groups= "$root" env -i "${envs[@]}" \
		sh -c 'cd "$1" && shift && exec "$@"' sh "$cwd" "$@"
}

# objects OUT TREE: makes OUT, empty unless what is there was made for TREE as it is configured now. make would not
# see that: objects depend on include/config/*, paths that are relative to where it runs, and with MO= that is OUT.
objects() {
	local key
	key=$(sha256sum <"$2/.config")
	[ "$(cat "$1/.tree" 2>/dev/null)" = "$key" ] || rm -rf "${1:?}"
	mkdir -p "$1"
	echo "$key" >"$1/.tree"
}

# What is told to be the kernel when nobody names one; `next` and `sid` stand for
# versions too.
default_kver() {
	local want got
	case ${KVER:-} in
	'') want=$pinned_kver ;;
	next) want=$next_kver ;;
	sid) want=$sid_kver ;;
	*)
		is_kver "$KVER" || usage_error "KVER=$KVER is no kernel version"
		echo "$KVER"
		return
		;;
	esac
	got=$(awk -v want="$want" '$1 == want { got = $2 } END { print got }' "$(cache_of "$want")/kernel/default" 2>/dev/null) || :
	echo "${got:-$want}"
}

# The series of kernels that the module is known to build for, from the first to the last.
known_series="7.2 7.3"

# series_of KVER: such as 7.2.
series_of() { echo "${1%%[+-]*}" | cut -d. -f1-2; }

# successor WANT NAMED: what is taken for WANT, which has left the archive, and why, of the list of kernels on
# standard input: the version that follows it, in a series that the module is known to build for (its own, mostly);
# else what linux-image-$ending names, NAMED, where it is later. Nothing where there is none.
successor() {
	local want=$1 named=$2 found kver
	# Those that come after it.
	found=$({ cat && echo "$want"; } | sort -uV | awk -v from="$want" 'after { print } $0 == from { after = 1 }')
	while read -r kver; do
		case " $known_series " in
		*" $(series_of "$kver") "*)
			if [ "$(series_of "$kver")" = "$(series_of "$want")" ]; then
				echo "$kver it is the next one of that series"
			else
				echo "$kver of that series there is none, and the module is known to build for $(series_of "$kver")"
			fi
			return
			;;
		esac
	done <<<"$found"
	if grep -qxF -e "$named" <<<"$found"; then
		echo "$named linux-image-$ending names it; the module is known to build for ${known_series// / and } only"
	fi
}

# The debug kernel is made from the source of the stock one and named after it.
debug_kver() { echo "${1%-*}-debug"; }

case $ending in
amd64 | arm64 | arm64-16k) ;;
*) die "ARCH=$ARCH: it is amd64, arm64 or arm64-16k" ;;
esac
use_kver "$(default_kver)"

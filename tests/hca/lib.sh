# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# What the suites of the lab's adapter share: this, and tests/vm/lib.sh. Sourced, never run.
# shellcheck source=tests/vm/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../vm/lib.sh"

# shellcheck disable=SC2034 # for the suites
hosts=$vm/../hca/hosts

# self_test: ulp_hca_client breaks each rule.
self_test() {
	local good name why cases=0
	log_mark
	# It depends on ulp_hca, which modprobe does not know.
	check "insmod ulp_hca_client" timeout 60 insmod "$ulp/ulp_hca_client.ko"
	check "rmmod ulp_hca_client" timeout 20 rmmod ulp_hca_client
	while read -r good name why; do
		cases=$((cases + 1))
		if [ "$good" = ok ]; then ok "caught: $name"; else not_ok "caught: $name" "$why"; fi
	done < <(log_since | sed -nE 's/^ulp_hca_client: (ok|not ok) (\S+): /\1 \2 /; T; s/^not ok/not_ok/; p')
	equal "it ran all its cases" $cases "$(grep -c "^	CASE(" "$vm/../hca/client.c")"
	equal "no trouble in the log" "$(log_since | grep -E "$trouble")" ""
}

// SPDX-License-Identifier: GPL-2.0
/*
 * The task work of io_uring's commands, in C for the function tracers: see entry.c.
 */
#include <linux/io_uring/cmd.h>

#include "helpers.h"

static void rust_ulp_uring_done(struct io_tw_req tw_req, io_tw_token_t tw)
{
	struct io_uring_cmd *cmd = io_uring_cmd_from_tw(tw_req);
	struct rust_ulp_uring *it =
		io_uring_cmd_to_pdu(cmd, struct rust_ulp_uring);

	rust_ulp_h_uring_done(cmd, (s32)it->outcome, it->extra,
			      IO_URING_CMD_TASK_WORK_ISSUE_FLAGS,
			      it->kind & RUST_ULP_URING_BIG);
}

/* Has the task complete a command of io_uring whose result is known. */
void rust_ulp_h_uring_complete(struct io_uring_cmd *cmd)
{
	io_uring_cmd_do_in_task_lazy(cmd, rust_ulp_uring_done);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Commands of io_uring. See helpers.h.
 */
#include "helpers.h"

struct rust_ulp_uring *rust_ulp_h_uring_pdu(struct io_uring_cmd *cmd)
{
	return io_uring_cmd_to_pdu(cmd, struct rust_ulp_uring);
}

u32 rust_ulp_h_uring_op(const struct io_uring_cmd *cmd)
{
	return cmd->cmd_op;
}

/* Returns the uring_cmd_flags of the entry. */
u32 rust_ulp_h_uring_flags(const struct io_uring_cmd *cmd)
{
	return cmd->flags & IORING_URING_CMD_MASK;
}

/* User space may change the entry at any time, so the caller checks and uses the copy only. */
void rust_ulp_h_uring_copy(const struct io_uring_cmd *cmd, void *to, size_t len)
{
	memcpy(to, cmd->sqe->cmd, len);
}

/*
 * Returns whether io_uring cancels @a and @b together: it cancels all commands of a ring, or all
 * commands of a task in a ring.
 */
bool rust_ulp_h_uring_end_together(const struct io_uring_cmd *a,
				   const struct io_uring_cmd *b)
{
	const struct io_kiocb *one = cmd_to_io_kiocb((void *)a);
	const struct io_kiocb *two = cmd_to_io_kiocb((void *)b);

	return one->ctx == two->ctx && one->tctx == two->tctx;
}

void rust_ulp_h_uring_mark(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	io_uring_cmd_mark_cancelable(cmd, issue_flags);
}

void rust_ulp_h_uring_done(struct io_uring_cmd *cmd, s32 res, u64 extra,
			   unsigned int issue_flags, bool big)
{
	__io_uring_cmd_done(cmd, res, extra, issue_flags, big);
}

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

/* Stores the buffer group of the entry, and returns whether the command is multishot. */
bool rust_ulp_h_uring_group(const struct io_uring_cmd *cmd, u16 *group)
{
	*group = READ_ONCE(cmd->sqe->buf_group);
	return cmd->flags & IORING_URING_CMD_MULTISHOT;
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

/*
 * Fills a buffer of the group, and posts its length. Called from task work. Returns 0, or an error
 * when the buffer is still in its group. When io_uring's CQ is full, returns the length: the buffer
 * is used up, and the last completion of the command must report it.
 */
int rust_ulp_h_uring_post(struct io_uring_cmd *cmd, unsigned int group,
			  ssize_t (*fill)(void *source, void *to, size_t len),
			  void *source)
{
	const unsigned int flags = IO_URING_CMD_TASK_WORK_ISSUE_FLAGS;
	struct io_br_sel sel;
	size_t len = 0;

	sel = io_uring_cmd_buffer_select(cmd, group, &len, flags);
	if (sel.val < 0)
		return sel.val;
	if (!sel.addr)
		return -ENOBUFS;
	sel.val = fill(source, (__force void *)sel.addr, len);
	if (!io_uring_mshot_cmd_post_cqe(cmd, &sel, flags))
		return 0;
	return sel.val ?: -ENOBUFS;
}

void rust_ulp_h_uring_end(struct io_uring_cmd *cmd, s32 res, bool big)
{
	__io_uring_cmd_done(cmd, res, 0, IO_URING_CMD_TASK_WORK_ISSUE_FLAGS,
			    big);
}

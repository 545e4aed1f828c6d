/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/* Generated from rust_ulp.h by scripts/abi. Do not edit; change the header and run scripts/abi. */
#ifndef _ULP_NAMES_H
#define _ULP_NAMES_H

#define show_ulp_opcode(value) \
	__print_symbolic(value, \
		{ 0, "RDMA_WRITE" }, \
		{ 1, "RDMA_WRITE_WITH_IMM" }, \
		{ 2, "SEND" }, \
		{ 3, "SEND_WITH_IMM" }, \
		{ 4, "RDMA_READ" }, \
		{ 5, "ATOMIC_CMP_AND_SWP" }, \
		{ 6, "ATOMIC_FETCH_AND_ADD" }, \
		{ 9, "SEND_WITH_INV" }, \
		{ 128, "RECV" })

#define show_ulp_wc_opcode(value) \
	__print_symbolic(value, \
		{ 0, "SEND" }, \
		{ 1, "RDMA_WRITE" }, \
		{ 2, "RDMA_READ" }, \
		{ 3, "COMP_SWAP" }, \
		{ 4, "FETCH_ADD" }, \
		{ 128, "RECV" }, \
		{ 129, "RECV_RDMA_WITH_IMM" })

#define show_ulp_qps(value) \
	__print_symbolic(value, \
		{ 0, "RESET" }, \
		{ 1, "INIT" }, \
		{ 2, "RTR" }, \
		{ 3, "RTS" }, \
		{ 4, "SQD" }, \
		{ 5, "SQE" }, \
		{ 6, "ERR" })

#define show_ulp_event(value) \
	__print_symbolic(value, \
		{ 0, "CQ_ERR" }, \
		{ 1, "QP_FATAL" }, \
		{ 2, "QP_REQ_ERR" }, \
		{ 3, "QP_ACCESS_ERR" }, \
		{ 4, "COMM_EST" }, \
		{ 5, "SQ_DRAINED" }, \
		{ 6, "PATH_MIG" }, \
		{ 7, "PATH_MIG_ERR" }, \
		{ 8, "DEVICE_FATAL" }, \
		{ 9, "PORT_ACTIVE" }, \
		{ 10, "PORT_ERR" }, \
		{ 11, "LID_CHANGE" }, \
		{ 12, "PKEY_CHANGE" }, \
		{ 13, "SM_CHANGE" }, \
		{ 14, "SRQ_ERR" }, \
		{ 15, "SRQ_LIMIT" }, \
		{ 16, "LAST_WQE_REACHED" }, \
		{ 17, "CLIENT_REREGISTER" }, \
		{ 18, "GID_CHANGE" }, \
		{ 256, "DEVICE_REMOVED" }, \
		{ 257, "DEVICE_RENAMED" }, \
		{ 258, "LOST" }, \
		{ 259, "GRANT_ENDED" }, \
		{ 272, "CONNECT_REQUEST" }, \
		{ 273, "DISCONNECTED" }, \
		{ 274, "TIMEWAIT_EXIT" }, \
		{ 275, "ADDR_CHANGE" }, \
		{ 276, "UNREACHABLE" }, \
		{ 277, "ESTABLISHED" }, \
		{ 278, "CONNECT_FAILED" })

#define show_ulp_grant_state(value) \
	__print_symbolic(value, \
		{ 1, "active" }, \
		{ 2, "used" }, \
		{ 3, "expired" })

#endif /* _ULP_NAMES_H */

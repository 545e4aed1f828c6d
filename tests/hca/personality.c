// SPDX-License-Identifier: GPL-2.0
/*
 * The personalities: what drivers of real adapters offer, and what they refuse.
 *
 * Each rule that differs from `plain` names the source that has it, below
 * drivers/infiniband of Linux 7.2.12. Those of qp_types, refuses_atomics,
 * no_remote_atomics, no_reset, no_local_inv and hides_failure are in the rows
 * of rust_ulp/rdma/quirks.rs.
 */
#include <linux/module.h>
#include <linux/sizes.h>

#include "hca.h"

static char *personality = "plain";
module_param(personality, charp, 0444);
MODULE_PARM_DESC(personality, "the driver whose rules the adapters have");

/* What an adapter has unless its personality says otherwise. */
#define PLAIN                                                                \
	.core_cap = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP, .ports = 1,           \
	.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UC) | BIT(IB_QPT_UD),        \
	.atomics = true, .dma_lkey = true, .last_wqe = true,                 \
	.max_send_sge = HCA_MAX_SGE, .max_recv_sge = HCA_MAX_SGE - 5,        \
	.max_sge_rd = 9, .max_inline = HCA_MAX_INLINE, .max_wr = HCA_MAX_WR, \
	.max_cqe = HCA_MAX_CQE, .max_srq = 1 << 15, .max_rd_atomic = 14,     \
	.max_init_rd_atomic = 10, .mtu = 4200, .max_pages = HCA_MAX_PAGES,   \
	.good_pages = HCA_MAX_PAGES, .page_sizes = 0xfffff000

#define DRIVER(of, number) PLAIN, .name = of, .driver = RDMA_DRIVER_##number

static const struct hca_rules all_rules[] = {
	{ PLAIN, .name = "plain" },
	{
		DRIVER("mlx4", MLX4),
		/* hw/mlx4/qp.c:set_kernel_sq_size */
		.no_inline = true,
	},
	{
		DRIVER("mlx5", MLX5),
		/* hw/mlx5/wr.c:mlx5_ib_post_send */
		.refuses_in_error = true,
		/* hw/mlx5/qp.c:sq_overhead: of RC, that of a UMR. */
		.wqe_overhead = 192,
		/* hw/mlx5/qp.c:calc_sq_size: max_wqe_sz_sq, and 2^15 blocks. */
		.max_wqe = 1024,
		.max_sq = 64 << 15,
		.refuses_atomics = true,
		/* hw/mlx5/mr.c:mlx5_set_umr_free_mkey, where the adapter has it */
		.relaxed = true,
	},
	{
		DRIVER("vf", MLX5),
		/* hw/mlx5/main.c:mlx5_ib_query_device: umr_modify_entity_size_disabled */
		.no_reg_mr = true,
		.good_pages = 0,
		.refuses_atomics = true,
	},
	{
		DRIVER("irdma", IRDMA),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		/* hw/irdma/user.h:IRDMA_MAX_INLINE_DATA_SIZE; nothing raises LAST_WQE_REACHED. */
		.max_inline = 101,
		.last_wqe = false,
		/* hw/irdma/icrdma_hw.c:icrdma_init_hw; any other counts as 4 KiB. */
		.page_sizes = SZ_4K | SZ_2M | SZ_1G,
		/* hw/irdma/verbs.c:irdma_query_device, but irdma_post_send: one level alone. */
		.max_pages = 262144,
		.good_pages = 512,
		/* hw/irdma/verbs.c:irdma_alloc_mr and irdma_hw_alloc_stag: STAGLEN. */
		.short_keys = true,
		.no_remote_atomics = true,
		.no_reset = true,
	},
	{
		DRIVER("qedr", QEDR),
		.qp_types = BIT(IB_QPT_RC),
		/* net/ethernet/qlogic/qed/qed_rdma.c:RDMA_MAX_SGE_PER_SQ_WQE */
		.max_send_sge = 4,
		.max_recv_sge = 4,
		.max_sge_rd = 4,
		/* Nothing in hw/qedr raises it. */
		.last_wqe = false,
		/* hw/qedr/verbs.c:qedr_query_device, but qedr_set_page: one level alone. */
		.max_pages = 16383,
		.good_pages = 8192,
		/* net/ethernet/qlogic/qed/qed_rdma.c:qed_rdma_bmap_alloc_id */
		.reuses_keys = true,
		/* hw/qedr/verbs.c:qedr_update_qp_state */
		.reset_from_error = true,
	},
	{
		DRIVER("bnxt", BNXT_RE),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		/* hw/bnxt_re/ib_verbs.c:bnxt_re_query_device, where PCIe has none */
		.atomics = false,
		/* hw/bnxt_re/ib_verbs.c:MAX_PBL_LVL_1_PGS */
		.max_pages = 512,
		/* hw/bnxt_re/qplib_fp.c:bnxt_qplib_post_send, of FAST_REG_MR */
		.more_access = IB_ACCESS_LOCAL_WRITE,
	},
	{
		DRIVER("erdma", ERDMA),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		/* hw/erdma/erdma_verbs.h, ERDMA_MAX_INLINE, _SEND_SGE, _RECV_SGE and _SGE_RD */
		.max_inline = 96,
		.max_send_sge = 6,
		.max_recv_sge = 1,
		.max_sge_rd = 1,
		/* erdma_query_device(): max_ord and max_ird, of 128; only the lab's differ. */
		.max_rd_atomic = HCA_MAX_RD_ATOMIC,
		.max_init_rd_atomic = 1,
		/* A port with an MTU of 1024, as behind a network with 1500. */
		.mtu = 1500,
		/* Nothing in hw/erdma raises it. */
		.last_wqe = false,
		/* hw/erdma/erdma_hw.h, ERDMA_PAGE_SIZE_SUPPORT */
		.page_sizes = 0x7ffff000,
		/* hw/erdma/erdma_qp.c:erdma_push_one_sqe: REG_MR has no field for the size. */
		.fixed_page_size = true,
		.hides_failure = true,
	},
	{
		DRIVER("pvrdma", VMW_PVRDMA),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		.no_inline = true,
		/* hw/vmw_pvrdma/pvrdma_srq.c:pvrdma_create_srq: for user space alone. */
		.last_wqe = false,
		/* hw/vmw_pvrdma/pvrdma_mr.c:pvrdma_alloc_mr: at most 128 of PAGE_SHIFT */
		.good_pages = 128,
		.fixed_page_size = true,
		.hides_failure = true,
	},
	{
		DRIVER("ionic", IONIC),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		/* hw/ionic/ionic_ibdev.c:ionic_dev_ops has no create_srq. */
		.max_srq = 0,
	},
	{
		DRIVER("hns", HNS),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		.no_local_inv = true,
		/* hw/hns/hns_roce_mr.c:alloc_mr_key */
		.reuses_keys = true,
		.hides_failure = true,
	},
	{
		DRIVER("hip08", HNS),
		.qp_types = BIT(IB_QPT_RC) | BIT(IB_QPT_UD),
		.no_local_inv = true,
		/* hw/hns/hns_roce_main.c:hns_roce_query_device: only from HIP09 on. */
		.max_pages = 0,
	},
	{
		DRIVER("ocrdma", OCRDMA),
		/* hw/ocrdma/ocrdma_verbs.c:ocrdma_build_reg takes a region for its first page. */
		.good_pages = 0,
	},
	{
		DRIVER("mana", MANA),
		/* hw/mana/qp.c:mana_ib_create_rc_qp: RC is for user space alone. */
		.qp_types = BIT(IB_QPT_UD),
		/* hw/mana/main.c:mana_ib_query_device sets none; there is no alloc_mr. */
		.max_pages = 0,
	},
	{
		PLAIN,
		.name = "ib",
		/* Without the management agents: no subnet manager is there. */
		.core_cap = RDMA_CORE_CAP_PROT_IB,
		.ports = 2,
		.down = 1,
		/* IBA 4.1.3: unicast LIDs have 16 bits. */
		.lid = 0x40,
	},
	{
		PLAIN,
		.name = "opa",
		.driver = RDMA_DRIVER_HFI1,
		/* hw/hfi1/verbs.c:hfi1_register_ib_device */
		.core_cap = RDMA_CORE_CAP_PROT_IB | RDMA_CORE_CAP_OPA_AH,
		/* hw/hfi1/verbs.c:query_port: LIDs have 32 bits. */
		.lid = 0x1234500,
		/* hw/hfi1/verbs.c:hfi1_fill_device_attr */
		.page_sizes = PAGE_SIZE,
		/* sw/rdmavt/mr.c, rvt_map_mr_sg() */
		.fixed_page_size = true,
		/* sw/rdmavt/qp.c:rvt_create_qp */
		.no_inline = true,
	},
	{
		DRIVER("cxgb4", CXGB4),
		/* hw/cxgb4/provider.c:c4iw_port_immutable; this one has no connection manager. */
		.core_cap = RDMA_CORE_CAP_PROT_IWARP,
	},
	{
		/* No driver's: the least that the module can live with. */
		PLAIN,
		.name = "strict",
		.qp_types = BIT(IB_QPT_RC),
		.atomics = false,
		.dma_lkey = false,
		.max_send_sge = 1,
		.max_recv_sge = 1,
		.max_sge_rd = 1,
		.max_inline = 0,
		/* The queue pair 1 of the core has 512 receives, and 640 completions. */
		.max_wr = 512,
		.max_cqe = 1024,
		.max_srq = 0,
		.max_rd_atomic = 1,
		.max_init_rd_atomic = 1,
		.max_pages = 16,
		.page_sizes = SZ_4K,
	},
};

const struct hca_rules *hca_find_rules(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(all_rules); i++)
		if (!strcmp(all_rules[i].name, personality))
			return &all_rules[i];
	pr_err(KBUILD_MODNAME ": no personality '%s'\n", personality);
	return NULL;
}

u32 hca_lid(struct hca *hca, u32 port)
{
	/* Aligned to 2^LMC. */
	return hca->rules->lid + 64 * hca->number + 8 * port;
}

int hca_query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	struct hca *hca = to_hca(ib);

	memset(gid, 0, sizeof(*gid));
	if (hca->netdev) {
		/* hw/cxgb4/provider.c:c4iw_query_gid */
		memcpy(gid->raw, hca->netdev->dev_addr, ETH_ALEN);
	} else if (!index) {
		gid->global.subnet_prefix = cpu_to_be64(0xfe80ULL << 48);
		gid->global.interface_id = cpu_to_be64(hca_lid(hca, port));
	}
	return 0;
}

/* The sizes of a send queue entry, and the capacity that results, as in calc_sq_size(). */
int hca_check_sq(struct hca *hca, struct ib_qp_cap *cap)
{
	const struct hca_rules *rules = hca->rules;
	u32 size, queue;

	if (!rules->wqe_overhead || !cap->max_send_wr)
		return 0;
	size = max_t(u32, cap->max_send_sge * 16,
		     cap->max_inline_data ? cap->max_inline_data + 4 : 0);
	size = ALIGN(size + rules->wqe_overhead, 64);
	if (size > rules->max_wqe)
		return -EINVAL;
	queue = roundup_pow_of_two(cap->max_send_wr * size);
	if (queue > rules->max_sq)
		return -ENOMEM;
	/* It grants what the entry has room for. */
	cap->max_inline_data = size - rules->wqe_overhead - 4;
	cap->max_send_sge =
		min_t(u32, (min_t(u32, size, 512) - 32) / 16, HCA_MAX_SGE);
	cap->max_send_wr = queue / size;
	return 0;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * The verbs: devices, queues, memory regions, addresses. See helpers.h.
 */
#include <linux/completion.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>

#include "helpers.h"

/* The caller has a reference, or is in a callback of a client, so the count is not zero. */
void rust_ulp_h_device_get(struct ib_device *dev)
{
	WARN_ON_ONCE(!ib_device_try_get(dev));
}

void rust_ulp_h_device_describe(struct ib_device *dev,
				struct rust_ulp_h_device *out)
{
	const struct ib_device_attr *attrs = &dev->attrs;

	*out = (struct rust_ulp_h_device){
		.max_mr_size = attrs->max_mr_size,
		.page_size_cap = attrs->page_size_cap,
		.device_cap_flags = attrs->device_cap_flags,
		.kernel_cap_flags = attrs->kernel_cap_flags,
		.index = dev->index,
		.driver_id = dev->ops.driver_id,
		.phys_ports = dev->phys_port_cnt,
		.num_comp_vectors = dev->num_comp_vectors,
		.vendor_id = attrs->vendor_id,
		.vendor_part_id = attrs->vendor_part_id,
		.hw_ver = attrs->hw_ver,
		.max_qp = attrs->max_qp,
		.max_qp_wr = attrs->max_qp_wr,
		.max_send_sge = attrs->max_send_sge,
		.max_recv_sge = attrs->max_recv_sge,
		.max_sge_rd = attrs->max_sge_rd,
		.max_cq = attrs->max_cq,
		.max_cqe = attrs->max_cqe,
		.max_mr = attrs->max_mr,
		.max_pd = attrs->max_pd,
		.max_qp_rd_atom = attrs->max_qp_rd_atom,
		.max_qp_init_rd_atom = attrs->max_qp_init_rd_atom,
		.max_srq = attrs->max_srq,
		.max_srq_wr = attrs->max_srq_wr,
		.max_srq_sge = attrs->max_srq_sge,
		/* mlx5 and mlx4 have a list of pages also where their adapter has no REG_MR. */
		.max_fast_reg_pages =
			attrs->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS ?
				attrs->max_fast_reg_page_list_len :
				0,
		.local_ca_ack_delay = attrs->local_ca_ack_delay,
		.atomic_cap = attrs->atomic_cap,
		.numa_node = ibdev_to_node(dev),
		.virt_dma = ib_uses_virt_dma(dev),
	};
	memcpy(out->node_guid, &dev->node_guid, sizeof(out->node_guid));
	memcpy(out->sys_image_guid, &attrs->sys_image_guid,
	       sizeof(out->sys_image_guid));
}

/* Returns NULL when the driver copies by the CPU. */
struct device *rust_ulp_h_dma_device(struct ib_device *dev)
{
	return dev->dma_device;
}

/*
 * Not dev_name(): kobject_rename() frees that string when the device is renamed. This array is
 * written in place, in pieces (strscpy() in ib_device_rename()), under a lock that the core keeps
 * for itself but holds over the callbacks of clients. At any other time the copy may have bytes of
 * both names.
 */
void rust_ulp_h_device_name(struct ib_device *dev, char *out, size_t len)
{
	unsigned long name[IB_DEVICE_NAME_MAX / sizeof(long)];
	size_t i;

	BUILD_BUG_ON(offsetof(struct ib_device, name) % sizeof(long));
	for (i = 0; i < ARRAY_SIZE(name); i++)
		name[i] = READ_ONCE(((const unsigned long *)dev->name)[i]);
	((char *)name)[sizeof(name) - 1] = 0;
	strscpy_pad(out, (char *)name, len);
}

bool rust_ulp_h_device_is_driven_by(struct ib_device *dev, const char *module)
{
	return dev->ops.owner && !strcmp(module_name(dev->ops.owner), module);
}

bool rust_ulp_h_device_is_iwarp(struct ib_device *dev)
{
	return rdma_protocol_iwarp(dev, rdma_start_port(dev));
}

bool rust_ulp_h_port_is_ib(struct ib_device *dev, u32 port)
{
	return rdma_is_port_valid(dev, port) && rdma_protocol_ib(dev, port);
}

int rust_ulp_h_gid(struct ib_device *dev, u32 port, u32 index, struct net *net,
		   struct rust_ulp_h_gid *out)
{
	const struct ib_gid_attr *attr = rdma_get_gid_attr(dev, port, index);
	struct net_device *ndev;
	int err = 0;

	if (IS_ERR(attr))
		return PTR_ERR(attr);

	memset(out, 0, sizeof(*out));
	memcpy(out->gid, attr->gid.raw, sizeof(out->gid));
	out->gid_type = attr->gid_type;
	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(attr);
	if (ndev == ERR_PTR(-ENODEV)) {
		/* No network device: InfiniBand. */
	} else if (IS_ERR(ndev)) {
		/* Deleted since, in whatever namespace it was. */
		err = PTR_ERR(ndev);
	} else if (!net_eq(dev_net(ndev), net)) {
		out->foreign_net = true;
	} else {
		out->local_net = true;
		out->ifindex = ndev->ifindex;
		strscpy_pad(out->ifname, ndev->name, sizeof(out->ifname));
	}
	rcu_read_unlock();
	rdma_put_gid_attr(attr);
	return err;
}

u32 rust_ulp_h_port_ifindex(struct ib_device *dev, u32 port, struct net *net)
{
	struct net_device *ndev = ib_device_get_netdev(dev, port);
	u32 ifindex = 0;

	if (!ndev)
		return 0;
	if (net_eq(dev_net(ndev), net))
		ifindex = ndev->ifindex;
	dev_put(ndev);
	return ifindex;
}

void rust_ulp_h_register_events(struct ib_event_handler *handler,
				struct ib_device *dev,
				void (*event)(struct ib_event_handler *handler,
					      struct ib_event *event))
{
	INIT_IB_EVENT_HANDLER(handler, dev, event);
	ib_register_event_handler(handler);
}

int rust_ulp_h_rdmacg_charge(struct ib_device *dev, bool object,
			     struct rdma_cgroup **cg)
{
#ifdef CONFIG_CGROUP_RDMA
	return rdmacg_try_charge(cg, &dev->cg_device,
				 object ? RDMACG_RESOURCE_HCA_OBJECT :
					  RDMACG_RESOURCE_HCA_HANDLE);
#else
	return 0;
#endif
}

void rust_ulp_h_rdmacg_uncharge(struct ib_device *dev, bool object,
				struct rdma_cgroup *cg)
{
#ifdef CONFIG_CGROUP_RDMA
	rdmacg_uncharge(cg, &dev->cg_device,
			object ? RDMACG_RESOURCE_HCA_OBJECT :
				 RDMACG_RESOURCE_HCA_HANDLE);
#endif
}

/*
 * Two modules link this file, so that KBUILD_MODNAME names neither: the owner that `rdma resource`
 * shows of a PD, CQ, QP or identifier is the module that runs. The core keeps the pointer to the
 * name, also of what a driver does not free, and reads it when the module is gone
 * (core/nldev.c:fill_res_name_pid). The SRQs and regions of a PD have its name.
 */
static char *owner;
static bool owner_stays;

struct ib_pd *rust_ulp_h_alloc_pd(struct ib_device *dev)
{
	return __ib_alloc_pd(dev, 0, owner);
}

/* Keeps the name for a PD that stays. */
void rust_ulp_h_keep_owner(void)
{
	WRITE_ONCE(owner_stays, true);
}

/*
 * The workers that poll completion queues; the core keeps its own to itself. The end of a process
 * that is killed for its memory waits for them: they have a rescuer.
 */
static struct workqueue_struct *cq_workers;

/* Makes the workers, and the name of the owner. */
int rust_ulp_h_start(void)
{
	if (cq_workers)
		return -EBUSY;
	owner = kstrdup(THIS_MODULE->name, GFP_KERNEL);
	if (!owner)
		return -ENOMEM;
	cq_workers = alloc_workqueue(
		"%s_cq", WQ_HIGHPRI | WQ_MEM_RECLAIM | WQ_PERCPU, 0, owner);
	if (cq_workers)
		return 0;
	kfree(owner);
	owner = NULL;
	return -ENOMEM;
}

void rust_ulp_h_stop(void)
{
	destroy_workqueue(cq_workers);
	cq_workers = NULL;
	if (!READ_ONCE(owner_stays))
		kfree(owner);
	owner = NULL;
}

/* In two places, so that lockdep tells the two kinds of work apart. */
void rust_ulp_h_init_cq_work(struct work_struct *work, work_func_t func,
			     bool softirq)
{
	if (softirq)
		INIT_WORK(work, func);
	else
		INIT_WORK(work, func);
}

void rust_ulp_h_queue_cq_work(struct work_struct *work, bool softirq)
{
	queue_work(softirq ? system_bh_wq : cq_workers, work);
}

struct ib_cq *
rust_ulp_h_create_cq(struct ib_device *dev, ib_comp_handler completion,
		     void (*event)(struct ib_event *event, void *context),
		     void *context, u32 entries, u32 vector)
{
	struct ib_cq_init_attr attr = {
		.cqe = entries,
		.comp_vector = vector,
	};

	return __ib_create_cq(dev, completion, event, context, &attr,
			      THIS_MODULE->name);
}

int rust_ulp_h_cq_entries(struct ib_cq *cq)
{
	return cq->cqe;
}

/* Returns whether the queue may have completions that it does not report. */
bool rust_ulp_h_arm_cq(struct ib_cq *cq)
{
	return ib_req_notify_cq(cq, IB_CQ_NEXT_COMP |
					    IB_CQ_REPORT_MISSED_EVENTS) > 0;
}

/* Keeps the code of this module for ever. While the module is unloaded, does not return. */
void rust_ulp_h_keep_module(void)
{
	if (try_module_get(THIS_MODULE))
		return;
	for (;;)
		schedule_timeout_uninterruptible(MAX_SCHEDULE_TIMEOUT);
}

struct ib_qp *rust_ulp_h_create_qp(struct ib_pd *pd,
				   struct ib_qp_init_attr *init)
{
	return ib_create_qp_kernel(pd, init, THIS_MODULE->name);
}

/* Ends the events of a queue pair that the driver did not destroy. */
void rust_ulp_h_disown_qp(struct ib_qp *qp)
{
	WRITE_ONCE(qp->registered_event_handler, NULL);
	synchronize_rcu();
}

u32 rust_ulp_h_qp_num(struct ib_qp *qp)
{
	return qp->qp_num;
}

struct rust_ulp_drain_cqe {
	struct ib_cqe cqe;
	struct completion done;
};

static void rust_ulp_drain_done(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(
		&container_of(wc->wr_cqe, struct rust_ulp_drain_cqe, cqe)->done);
}

/*
 * Waits for the last request of a queue. A device that fails while the request is posted completes
 * it for who polls, but may not report that (hw/mlx5/main.c:mlx5_ib_handle_internal_error() looks
 * for requests once). And a thread that was woken to poll may get no CPU. So the work polls, too.
 */
static void rust_ulp_wait_drained(struct completion *done,
				  struct work_struct *work, bool softirq)
{
	while (!wait_for_completion_timeout(done, HZ / 10))
		rust_ulp_h_queue_cq_work(work, softirq);
}

/*
 * Waits until all requests in the send queue of a queue pair in ERR are handled: posts another one,
 * and waits for its completion. UD has no RDMA write, which other types post; its request goes to
 * @ah. @work polls the completion queue, in a softirq if @softirq is set.
 */
int rust_ulp_h_drain_sq(struct ib_qp *qp, struct ib_ah *ah,
			struct work_struct *work, bool softirq)
{
	struct rust_ulp_drain_cqe drain = { .cqe.done = rust_ulp_drain_done };
	union {
		struct ib_send_wr wr;
		struct ib_rdma_wr rdma;
		struct ib_ud_wr ud;
	} last = {};
	int err;

	last.wr.wr_cqe = &drain.cqe;
	last.wr.send_flags = IB_SEND_SIGNALED;
	last.wr.opcode = IB_WR_RDMA_WRITE;
	if (ah) {
		last.wr.opcode = IB_WR_SEND;
		last.ud.ah = ah;
	}
	init_completion(&drain.done);
	err = ib_post_send(qp, &last.wr, NULL);
	if (err)
		return err;
	rust_ulp_wait_drained(&drain.done, work, softirq);
	return 0;
}

/* As rust_ulp_h_drain_sq(), for the receive queue. */
int rust_ulp_h_drain_rq(struct ib_qp *qp, struct work_struct *work,
			bool softirq)
{
	struct rust_ulp_drain_cqe drain = { .cqe.done = rust_ulp_drain_done };
	struct ib_recv_wr last = { .wr_cqe = &drain.cqe };
	int err;

	init_completion(&drain.done);
	err = ib_post_recv(qp, &last, NULL);
	if (err)
		return err;
	rust_ulp_wait_drained(&drain.done, work, softirq);
	return 0;
}

/* Returns whether the device has reported the last request, for which this waits @jiffies. */
bool rust_ulp_h_wait_last_wqe(struct ib_qp *qp, unsigned long jiffies)
{
	return wait_for_completion_timeout(&qp->srq_completion, jiffies);
}

void rust_ulp_h_forget_last_wqe(struct ib_qp *qp)
{
	reinit_completion(&qp->srq_completion);
}

struct ib_srq *rust_ulp_h_create_srq(struct ib_pd *pd,
				     void (*event)(struct ib_event *event,
						   void *context),
				     void *context, u32 max_wr, u32 max_sge)
{
	struct ib_srq_init_attr init = {
		.event_handler = event,
		.srq_context = context,
		.attr = { .max_wr = max_wr, .max_sge = max_sge },
		.srq_type = IB_SRQT_BASIC,
	};

	return ib_create_srq(pd, &init);
}

/* Ends the events of a shared receive queue that the driver did not destroy. */
void rust_ulp_h_disown_srq(struct ib_srq *srq)
{
	WRITE_ONCE(srq->event_handler, NULL);
	synchronize_rcu();
}

/* As ib_map_mr_sg_zbva() does: after ib_map_mr_sg(), before the REG_MR request is posted. */
void rust_ulp_h_mr_set_iova(struct ib_mr *mr, u64 iova)
{
	mr->iova = iova;
}

u32 rust_ulp_h_pd_lkey(struct ib_pd *pd)
{
	return pd->local_dma_lkey;
}

u32 rust_ulp_h_mr_lkey(struct ib_mr *mr)
{
	return mr->lkey;
}

u32 rust_ulp_h_mr_rkey(struct ib_mr *mr)
{
	return mr->rkey;
}

void rust_ulp_h_mr_next_key(struct ib_mr *mr)
{
	ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
}

void rust_ulp_h_sg_set(struct scatterlist *sg, struct page *page,
		       unsigned int len, unsigned int offset)
{
	sg_set_page(sg, page, len, offset);
}

/* Stores the address of memory that an exporter has mapped for the device. */
void rust_ulp_h_sg_set_dma(struct scatterlist *sg, u64 addr, unsigned int len)
{
	sg->length = len;
	sg_dma_address(sg) = addr;
	sg_dma_len(sg) = len;
}

/*
 * User space and the device share the memory while it is mapped, without dma_sync_*() calls, so
 * bounce buffers are refused. Returns -EIO where the DMA layer needs them.
 */
int rust_ulp_h_dma_map(struct ib_device *dev, struct sg_table *sgt, bool write)
{
	return ib_dma_map_sgtable_attrs(
		dev, sgt, write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE,
		DMA_ATTR_REQUIRE_COHERENT);
}

void rust_ulp_h_dma_unmap(struct ib_device *dev, struct sg_table *sgt,
			  bool write)
{
	ib_dma_unmap_sgtable_attrs(dev, sgt,
				   write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE,
				   DMA_ATTR_REQUIRE_COHERENT);
}

void rust_ulp_h_av_to_attr(struct ib_device *dev,
			   const struct rust_ulp_h_av *av,
			   struct rdma_ah_attr *attr)
{
	union ib_gid gid;

	memset(attr, 0, sizeof(*attr));
	memcpy(gid.raw, av->dgid, sizeof(gid.raw));
	/* The core refuses a port that the device lacks, but rdma_ah_find_type() reads its data. */
	if (rdma_is_port_valid(dev, av->port))
		attr->type = rdma_ah_find_type(dev, av->port);
	rdma_ah_set_port_num(attr, av->port);
	rdma_ah_set_sl(attr, av->sl);
	rdma_ah_set_static_rate(attr, av->static_rate);
	if (attr->type == RDMA_AH_ATTR_TYPE_IB ||
	    attr->type == RDMA_AH_ATTR_TYPE_OPA) {
		rdma_ah_set_dlid(attr, av->dlid);
		rdma_ah_set_path_bits(attr, av->src_path_bits);
	}
	if (attr->type == RDMA_AH_ATTR_TYPE_ROCE)
		memcpy(attr->roce.dmac, av->dmac, sizeof(av->dmac));
	if (av->grh)
		rdma_ah_set_grh(attr, &gid, av->flow_label, av->sgid_index,
				av->hop_limit, av->traffic_class);
}

void rust_ulp_h_av_from_attr(const struct rdma_ah_attr *attr,
			     struct rust_ulp_h_av *av)
{
	*av = (struct rust_ulp_h_av){
		.flow_label = attr->grh.flow_label,
		.port = rdma_ah_get_port_num(attr),
		.dlid = rdma_ah_get_dlid(attr),
		.sgid_index = attr->grh.sgid_index,
		.hop_limit = attr->grh.hop_limit,
		.traffic_class = attr->grh.traffic_class,
		.sl = rdma_ah_get_sl(attr),
		.static_rate = rdma_ah_get_static_rate(attr),
		.src_path_bits = rdma_ah_get_path_bits(attr),
		.grh = rdma_ah_get_ah_flags(attr) & IB_AH_GRH,
	};
	memcpy(av->dgid, attr->grh.dgid.raw, sizeof(av->dgid));
	if (attr->type == RDMA_AH_ATTR_TYPE_ROCE)
		memcpy(av->dmac, attr->roce.dmac, sizeof(av->dmac));
}

/* Returns the MTU of the netdev of an address handle, 0 without one or when its GID was removed. */
u32 rust_ulp_h_ah_netdev_mtu(struct ib_ah *ah)
{
	struct net_device *ndev;
	u32 mtu = 0;

	if (!ah->sgid_attr)
		return 0;
	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(ah->sgid_attr);
	if (!IS_ERR(ndev))
		mtu = READ_ONCE(ndev->mtu);
	rcu_read_unlock();
	return mtu;
}

/* Returns the bytes of the IB MTU that fits the MTU of a netdev. */
u32 rust_ulp_h_iboe_mtu(u32 mtu)
{
	enum ib_mtu fits = iboe_get_mtu(min_t(u32, mtu, INT_MAX));

	return fits ? ib_mtu_enum_to_int(fits) : 0;
}

/* Stores the link-layer address of a GID of this device, for a path from the device to itself. */
int rust_ulp_h_own_dmac(struct ib_device *dev, u32 port, u32 index, u8 dmac[6])
{
	const struct ib_gid_attr *attr = rdma_get_gid_attr(dev, port, index);
	u8 smac[ETH_ALEN] = {};
	int err;

	if (IS_ERR(attr))
		return PTR_ERR(attr);
	err = rdma_read_gid_l2_fields(attr, NULL, smac);
	rdma_put_gid_attr(attr);
	memcpy(dmac, smac, 6);
	return err;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * See helpers.h.
 */
#include <linux/backing-dev.h>
#include <linux/capability.h>
#include <linux/dma-buf.h>
#include <linux/in6.h>
#include <linux/inetdevice.h>
#include <linux/iosys-map.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/vmalloc.h>
#include <net/addrconf.h>
#include <net/ipv6.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>

#include "helpers.h"

/* The caller has a reference, or is in a client's callback: the count is not zero. */
void rust_ulp_h_device_get(struct ib_device *dev)
{
	WARN_ON_ONCE(!ib_device_try_get(dev));
}

void rust_ulp_h_device_describe(struct ib_device *dev, struct rust_ulp_h_device *out)
{
	const struct ib_device_attr *attrs = &dev->attrs;

	*out = (struct rust_ulp_h_device) {
		.max_mr_size = attrs->max_mr_size,
		.page_size_cap = attrs->page_size_cap,
		.device_cap_flags = attrs->device_cap_flags,
		.kernel_cap_flags = attrs->kernel_cap_flags,
		.index = dev->index,
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
		.max_fast_reg_pages = attrs->max_fast_reg_page_list_len,
		.local_ca_ack_delay = attrs->local_ca_ack_delay,
		.atomic_cap = attrs->atomic_cap,
		.numa_node = ibdev_to_node(dev),
		.virt_dma = ib_uses_virt_dma(dev),
	};
	memcpy(out->node_guid, &dev->node_guid, sizeof(out->node_guid));
	memcpy(out->sys_image_guid, &attrs->sys_image_guid, sizeof(out->sys_image_guid));
}

/* NULL when its driver copies by the CPU. */
struct device *rust_ulp_h_dma_device(struct ib_device *dev)
{
	return dev->dma_device;
}

/* The device may be renamed meanwhile: the copy is NUL-terminated, whatever it says. */
void rust_ulp_h_device_name(struct ib_device *dev, char *out, size_t len)
{
	strscpy_pad(out, dev_name(&dev->dev), len);
}

bool rust_ulp_h_device_is_driven_by(struct ib_device *dev, const char *module)
{
	return dev->ops.owner && !strcmp(module_name(dev->ops.owner), module);
}

bool rust_ulp_h_device_is_iwarp(struct ib_device *dev)
{
	return rdma_protocol_iwarp(dev, rdma_start_port(dev));
}

int rust_ulp_h_gid(struct ib_device *dev, u32 port, u32 index, struct net *net,
		   struct rust_ulp_h_gid *out)
{
	const struct ib_gid_attr *attr = rdma_get_gid_attr(dev, port, index);
	struct net_device *ndev;

	if (IS_ERR(attr))
		return PTR_ERR(attr);

	memset(out, 0, sizeof(*out));
	memcpy(out->gid, attr->gid.raw, sizeof(out->gid));
	out->gid_type = attr->gid_type;
	rcu_read_lock();
	ndev = rdma_read_gid_attr_ndev_rcu(attr);
	if (!IS_ERR(ndev) && net_eq(dev_net(ndev), net)) {
		out->local_net = true;
		out->ifindex = ndev->ifindex;
		strscpy_pad(out->ifname, ndev->name, sizeof(out->ifname));
	}
	rcu_read_unlock();
	rdma_put_gid_attr(attr);
	return 0;
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

void rust_ulp_h_register_events(struct ib_event_handler *handler, struct ib_device *dev,
				void (*event)(struct ib_event_handler *handler,
					      struct ib_event *event))
{
	INIT_IB_EVENT_HANDLER(handler, dev, event);
	ib_register_event_handler(handler);
}

int rust_ulp_h_rdmacg_charge(struct ib_device *dev, bool object, struct rdma_cgroup **cg)
{
#ifdef CONFIG_CGROUP_RDMA
	return rdmacg_try_charge(cg, &dev->cg_device, object ? RDMACG_RESOURCE_HCA_OBJECT :
							       RDMACG_RESOURCE_HCA_HANDLE);
#else
	return 0;
#endif
}

void rust_ulp_h_rdmacg_uncharge(struct ib_device *dev, bool object, struct rdma_cgroup *cg)
{
#ifdef CONFIG_CGROUP_RDMA
	rdmacg_uncharge(cg, &dev->cg_device, object ? RDMACG_RESOURCE_HCA_OBJECT :
						      RDMACG_RESOURCE_HCA_HANDLE);
#endif
}

struct ib_pd *rust_ulp_h_alloc_pd(struct ib_device *dev)
{
	return ib_alloc_pd(dev, 0);
}

void rust_ulp_h_dealloc_pd(struct ib_pd *pd)
{
	ib_dealloc_pd(pd);
}

u32 rust_ulp_h_pd_local_dma_lkey(struct ib_pd *pd)
{
	return pd->local_dma_lkey;
}

/* ib_alloc_cq() takes no event handler; without one a driver's CQ_ERR is lost. */
struct ib_cq *rust_ulp_h_alloc_cq(struct ib_device *dev, void *context, int nr_cqe,
				  int comp_vector, enum ib_poll_context poll_ctx,
				  void (*event)(struct ib_event *event, void *context))
{
	struct ib_cq *cq = ib_alloc_cq(dev, context, nr_cqe, comp_vector, poll_ctx);

	if (!IS_ERR(cq))
		cq->event_handler = event;
	return cq;
}

struct ib_qp *rust_ulp_h_create_qp(struct ib_pd *pd, struct ib_qp_init_attr *init)
{
	return ib_create_qp(pd, init);
}

int rust_ulp_h_destroy_qp(struct ib_qp *qp)
{
	return ib_destroy_qp(qp);
}

u32 rust_ulp_h_qp_num(struct ib_qp *qp)
{
	return qp->qp_num;
}

bool rust_ulp_h_may_control_qkeys(void)
{
	return capable(CAP_NET_RAW);
}

void *rust_ulp_h_qp_context(struct ib_qp *qp)
{
	return qp->qp_context;
}

struct rust_ulp_drain_cqe {
	struct ib_cqe cqe;
	struct completion done;
};

static void rust_ulp_drain_done(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&container_of(wc->wr_cqe, struct rust_ulp_drain_cqe, cqe)->done);
}

/*
 * What ib_drain_sq() does, for a queue pair of datagrams in ERR: the core's posts an RDMA write,
 * which is no operation of theirs.
 */
int rust_ulp_h_drain_ud_sq(struct ib_qp *qp, struct ib_ah *ah)
{
	struct rust_ulp_drain_cqe drain = { .cqe.done = rust_ulp_drain_done };
	struct ib_ud_wr wr = {
		.wr = {
			.wr_cqe = &drain.cqe,
			.opcode = IB_WR_SEND,
			.send_flags = IB_SEND_SIGNALED,
		},
		.ah = ah,
	};
	const struct ib_send_wr *bad;
	int err;

	init_completion(&drain.done);
	err = ib_post_send(qp, &wr.wr, &bad);
	if (err)
		return err;
	if (qp->send_cq->poll_ctx == IB_POLL_DIRECT)
		while (!wait_for_completion_timeout(&drain.done, HZ / 10))
			ib_process_cq_direct(qp->send_cq, -1);
	else
		wait_for_completion(&drain.done);
	return 0;
}

/* As long as __ib_drain_srq() waits. */
bool rust_ulp_h_wait_last_wqe(struct ib_qp *qp)
{
	return wait_for_completion_timeout(&qp->srq_completion, 60 * HZ);
}

void rust_ulp_h_forget_last_wqe(struct ib_qp *qp)
{
	reinit_completion(&qp->srq_completion);
}

struct ib_srq *rust_ulp_h_create_srq(struct ib_pd *pd,
				     void (*event)(struct ib_event *event, void *context),
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

int rust_ulp_h_destroy_srq(struct ib_srq *srq)
{
	return ib_destroy_srq_user(srq, NULL);
}

int rust_ulp_h_dereg_mr(struct ib_mr *mr)
{
	return ib_dereg_mr(mr);
}

/* As ib_map_mr_sg_zbva() does: after ib_map_mr_sg(), before the REG_MR request is posted. */
void rust_ulp_h_mr_set_iova(struct ib_mr *mr, u64 iova)
{
	mr->iova = iova;
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

int rust_ulp_h_sg_alloc(struct sg_table *table, unsigned int nents)
{
	return sg_alloc_table(table, nents, GFP_KERNEL_ACCOUNT);
}

void rust_ulp_h_sg_set(struct scatterlist *sg, struct page *page, unsigned int len,
		       unsigned int offset)
{
	sg_set_page(sg, page, len, offset);
}

struct scatterlist *rust_ulp_h_sg_next(struct scatterlist *sg)
{
	return sg_next(sg);
}

/* What somebody else has mapped. */
void rust_ulp_h_sg_set_dma(struct scatterlist *sg, u64 addr, unsigned int len)
{
	sg->length = len;
	sg_dma_address(sg) = addr;
	sg_dma_len(sg) = len;
}

int rust_ulp_h_dma_map(struct ib_device *dev, struct sg_table *sgt)
{
	return ib_dma_map_sgtable_attrs(dev, sgt, DMA_BIDIRECTIONAL, 0);
}

void rust_ulp_h_dma_unmap(struct ib_device *dev, struct sg_table *sgt)
{
	ib_dma_unmap_sgtable_attrs(dev, sgt, DMA_BIDIRECTIONAL, 0);
}

void rust_ulp_h_ah_attr_set(struct ib_device *dev, struct rdma_ah_attr *attr, u32 port,
			    const u8 dgid[16], u32 flow_label, u8 sgid_index, u8 hop_limit,
			    u8 traffic_class, bool grh, u8 sl, u16 dlid, u8 src_path_bits,
			    u8 static_rate)
{
	union ib_gid gid;

	memset(attr, 0, sizeof(*attr));
	memcpy(gid.raw, dgid, sizeof(gid.raw));
	attr->type = rdma_ah_find_type(dev, port);
	rdma_ah_set_port_num(attr, port);
	rdma_ah_set_sl(attr, sl);
	rdma_ah_set_static_rate(attr, static_rate);
	if (attr->type == RDMA_AH_ATTR_TYPE_IB) {
		rdma_ah_set_dlid(attr, dlid);
		rdma_ah_set_path_bits(attr, src_path_bits);
	}
	if (grh)
		rdma_ah_set_grh(attr, &gid, flow_label, sgid_index, hop_limit, traffic_class);
}

void rust_ulp_h_ah_attr_set_dmac(struct rdma_ah_attr *attr, const u8 dmac[6])
{
	if (attr->type == RDMA_AH_ATTR_TYPE_ROCE)
		memcpy(attr->roce.dmac, dmac, 6);
}

void rust_ulp_h_ah_attr_get_dmac(const struct rdma_ah_attr *attr, u8 dmac[6])
{
	memset(dmac, 0, 6);
	if (attr->type == RDMA_AH_ATTR_TYPE_ROCE)
		memcpy(dmac, attr->roce.dmac, 6);
}

u8 rust_ulp_h_ah_attr_hop_limit(const struct rdma_ah_attr *attr)
{
	return attr->grh.hop_limit;
}

void rust_ulp_h_ah_attr_get(const struct rdma_ah_attr *attr, u32 *port, u8 dgid[16],
			    u32 *flow_label, u8 *sgid_index, u8 *hop_limit, u8 *traffic_class,
			    bool *grh, u8 *sl, u16 *dlid, u8 *src_path_bits, u8 *static_rate)
{
	*port = rdma_ah_get_port_num(attr);
	memcpy(dgid, attr->grh.dgid.raw, 16);
	*flow_label = attr->grh.flow_label;
	*sgid_index = attr->grh.sgid_index;
	*hop_limit = attr->grh.hop_limit;
	*traffic_class = attr->grh.traffic_class;
	*grh = rdma_ah_get_ah_flags(attr) & IB_AH_GRH;
	*sl = rdma_ah_get_sl(attr);
	*dlid = rdma_ah_get_dlid(attr);
	*src_path_bits = rdma_ah_get_path_bits(attr);
	*static_rate = rdma_ah_get_static_rate(attr);
}

struct ib_ah *rust_ulp_h_create_ah(struct ib_pd *pd, struct rdma_ah_attr *attr)
{
	return rdma_create_ah(pd, attr, RDMA_CREATE_AH_SLEEPABLE);
}

/* MTU of the netdev behind an address handle; 0 when there is none, or its GID is gone. */
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

/* Bytes of the IB MTU that fits a netdev's MTU. */
u32 rust_ulp_h_iboe_mtu(u32 mtu)
{
	enum ib_mtu fits = iboe_get_mtu(min_t(u32, mtu, INT_MAX));

	return fits ? ib_mtu_enum_to_int(fits) : 0;
}

void rust_ulp_h_destroy_ah(struct ib_ah *ah)
{
	rdma_destroy_ah(ah, RDMA_DESTROY_AH_SLEEPABLE);
}

/* The link-layer address behind a GID of this device: the way from a device to itself. */
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

static void to_sockaddr(const struct rust_ulp_h_addr *addr, struct sockaddr_storage *out)
{
	memset(out, 0, sizeof(*out));
	if (addr->family == AF_INET6) {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)out;

		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = htons(addr->port);
		sin6->sin6_scope_id = addr->scope_id;
		memcpy(&sin6->sin6_addr, addr->addr, sizeof(sin6->sin6_addr));
	} else {
		struct sockaddr_in *sin = (struct sockaddr_in *)out;

		sin->sin_family = AF_INET;
		sin->sin_port = htons(addr->port);
		memcpy(&sin->sin_addr, addr->addr, sizeof(sin->sin_addr));
	}
}

/* The connection manager does not always say of which link a link-local address is: @ifindex. */
static void from_sockaddr(const struct sockaddr_storage *addr, int ifindex,
			  struct rust_ulp_h_addr *out)
{
	memset(out, 0, sizeof(*out));
	out->family = addr->ss_family;
	if (addr->ss_family == AF_INET6) {
		const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)addr;

		out->port = ntohs(sin6->sin6_port);
		if (ipv6_addr_type(&sin6->sin6_addr) & IPV6_ADDR_LINKLOCAL)
			out->scope_id = sin6->sin6_scope_id ?: ifindex;
		memcpy(out->addr, &sin6->sin6_addr, sizeof(sin6->sin6_addr));
	} else if (addr->ss_family == AF_INET) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)addr;

		out->port = ntohs(sin->sin_port);
		memcpy(out->addr, &sin->sin_addr, sizeof(sin->sin_addr));
	}
}

/*
 * An address of the port's netdev, when that is in @net: of IPv4 if it has one, else one of IPv6 that
 * needs no link.
 */
bool rust_ulp_h_port_addr(struct ib_device *dev, u32 port, struct net *net,
			  struct rust_ulp_h_addr *out)
{
	struct net_device *ndev = ib_device_get_netdev(dev, port);
	struct inet6_ifaddr *ifp;
	struct inet6_dev *in6_dev;
	struct in_device *in_dev;
	struct in_ifaddr *ifa;

	memset(out, 0, sizeof(*out));
	if (!ndev)
		return false;
	rcu_read_lock();
	in_dev = net_eq(dev_net(ndev), net) ? __in_dev_get_rcu(ndev) : NULL;
	if (in_dev) {
		in_dev_for_each_ifa_rcu(ifa, in_dev) {
			out->family = AF_INET;
			memcpy(out->addr, &ifa->ifa_local, sizeof(ifa->ifa_local));
			break;
		}
	}
	in6_dev = !out->family && net_eq(dev_net(ndev), net) ? __in6_dev_get(ndev) : NULL;
	if (in6_dev) {
		list_for_each_entry_rcu(ifp, &in6_dev->addr_list, if_list) {
			if (ifp->flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) ||
			    ipv6_addr_type(&ifp->addr) & IPV6_ADDR_LINKLOCAL)
				continue;
			out->family = AF_INET6;
			memcpy(out->addr, &ifp->addr, sizeof(ifp->addr));
			break;
		}
	}
	rcu_read_unlock();
	dev_put(ndev);
	return out->family;
}

/* The manager looks at no device of another kind than @dev, where it knows that kind. */
struct rdma_cm_id *rust_ulp_h_cm_create(struct net *net, struct ib_device *dev,
					struct rust_ulp_cm_hook *hook)
{
	struct rdma_cm_id *id = rdma_create_id(net, rust_ulp_cm_event, hook, RDMA_PS_TCP,
					       IB_QPT_RC);

	/* Fails for other kinds only. */
	if (!IS_ERR(id))
		rdma_restrict_node_type(id, dev->node_type);
	return id;
}

struct rust_ulp_cm_hook *rust_ulp_h_cm_hook(struct rdma_cm_id *id)
{
	return id->context;
}

/* In the handler of a request, whose identifier has the context of its listener. */
void rust_ulp_h_cm_set_hook(struct rdma_cm_id *id, struct rust_ulp_cm_hook *hook)
{
	id->context = hook;
}

int rust_ulp_h_cm_bind(struct rdma_cm_id *id, const struct rust_ulp_h_addr *addr)
{
	struct sockaddr_storage storage;

	to_sockaddr(addr, &storage);
	return rdma_bind_addr(id, (struct sockaddr *)&storage);
}

int rust_ulp_h_cm_resolve_addr(struct rdma_cm_id *id, const struct rust_ulp_h_addr *src,
			       const struct rust_ulp_h_addr *dst, unsigned long timeout_ms)
{
	struct sockaddr_storage from, to;

	to_sockaddr(dst, &to);
	if (src)
		to_sockaddr(src, &from);
	return rdma_resolve_addr(id, src ? (struct sockaddr *)&from : NULL,
				 (struct sockaddr *)&to, timeout_ms);
}

void rust_ulp_h_cm_addrs(struct rdma_cm_id *id, struct rust_ulp_h_addr *local,
			 struct rust_ulp_h_addr *peer)
{
	const struct rdma_addr *addr = &id->route.addr;

	from_sockaddr(&addr->src_addr, addr->dev_addr.bound_dev_if, local);
	from_sockaddr(&addr->dst_addr, addr->dev_addr.bound_dev_if, peer);
}

bool rust_ulp_h_cm_device_index(struct rdma_cm_id *id, u32 *index)
{
	struct ib_device *dev = READ_ONCE(id->device);

	if (!dev)
		return false;
	*index = dev->index;
	return true;
}

bool rust_ulp_h_cm_path(struct rdma_cm_id *id, u8 *mtu, u8 *traffic_class)
{
	const struct sa_path_rec *path = id->route.path_rec;

	if (!path)
		return false;
	*mtu = path->mtu;
	*traffic_class = path->traffic_class;
	return true;
}

/* Between rdma_resolve_route() and rdma_connect(): what the peer is told, and has to keep to. */
void rust_ulp_h_cm_limit_mtu(struct rdma_cm_id *id, u8 mtu)
{
	struct sa_path_rec *path = id->route.path_rec;

	if (path && path->mtu > mtu)
		path->mtu = mtu;
}

void rust_ulp_h_cm_event_read(const struct rdma_cm_event *event, struct rust_ulp_h_cm_event *out)
{
	const struct rdma_conn_param *conn = &event->param.conn;

	*out = (struct rust_ulp_h_cm_event) {
		.event = event->event,
		.status = event->status,
		.private_data = conn->private_data,
		.private_data_len = conn->private_data ? conn->private_data_len : 0,
		.qp_num = conn->qp_num,
		.responder_resources = conn->responder_resources,
		.initiator_depth = conn->initiator_depth,
		.flow_control = conn->flow_control,
		.retry_count = conn->retry_count,
		.rnr_retry_count = conn->rnr_retry_count,
	};
}

u64 rust_ulp_h_random(void)
{
	return get_random_u64();
}

/* Returns when no softirq runs that ran before, nor anybody who could not be preempted. */
void rust_ulp_h_synchronize_rcu(void)
{
	synchronize_rcu();
}

struct net *rust_ulp_h_current_net(void)
{
	return get_net(current->nsproxy->net_ns);
}

void rust_ulp_h_put_net(struct net *net)
{
	put_net(net);
}

int rust_ulp_h_percpu_ref_init(struct percpu_ref *ref, percpu_ref_func_t *release)
{
	return percpu_ref_init(ref, release, 0, GFP_KERNEL);
}

bool rust_ulp_h_percpu_ref_tryget_live(struct percpu_ref *ref)
{
	return percpu_ref_tryget_live(ref);
}

void rust_ulp_h_percpu_ref_put(struct percpu_ref *ref)
{
	percpu_ref_put(ref);
}

void rust_ulp_h_percpu_ref_kill(struct percpu_ref *ref)
{
	percpu_ref_kill(ref);
}

void rust_ulp_h_percpu_ref_exit(struct percpu_ref *ref)
{
	percpu_ref_exit(ref);
}

void rust_ulp_h_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

int rust_ulp_h_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void rust_ulp_h_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

unsigned long rust_ulp_h_spin_lock_irqsave(spinlock_t *lock)
{
	unsigned long flags;

	spin_lock_irqsave(lock, flags);
	return flags;
}

bool rust_ulp_h_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags)
{
	return spin_trylock_irqsave(lock, *flags);
}

void rust_ulp_h_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags)
{
	spin_unlock_irqrestore(lock, flags);
}

/* As ib_umem_get_va() does. The caller owns a reference to what is returned. */
struct mm_struct *rust_ulp_h_charge_pinned(unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct mm_struct *mm = current->mm;

	if (!mm)
		return ERR_PTR(-ENOMEM);
	if (atomic64_add_return(pages, &mm->pinned_vm) > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &mm->pinned_vm);
		return ERR_PTR(-ENOMEM);
	}
	mmgrab(mm);
	return mm;
}

void rust_ulp_h_uncharge_pinned(struct mm_struct *mm, unsigned long pages)
{
	atomic64_sub(pages, &mm->pinned_vm);
	mmdrop(mm);
}

int rust_ulp_h_pin_user_pages(unsigned long start, int num, bool write, struct page **pages)
{
	return pin_user_pages_fast(start, num, FOLL_LONGTERM | (write ? FOLL_WRITE : 0), pages);
}

/*
 * Pinning says EFAULT for what is not mapped, and for what is, and cannot be pinned for long:
 * device memory, and files that are written back, whose filesystem has to hear of every write.
 */
int rust_ulp_h_why_not_pinned(unsigned long addr, bool write, int err)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;

	if (err != -EFAULT)
		return err;
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, addr);
	if (vma && (vma->vm_flags & (write ? VM_WRITE : VM_READ))) {
		if (vma->vm_flags & (VM_IO | VM_PFNMAP))
			err = -EOPNOTSUPP;
		else if (write && (vma->vm_flags & VM_SHARED) && vma->vm_file &&
			 mapping_can_writeback(vma->vm_file->f_mapping))
			err = -EOPNOTSUPP;
	}
	mmap_read_unlock(mm);
	return err;
}

void rust_ulp_h_unpin_range(struct page *page, unsigned long num, bool dirty)
{
	unpin_user_page_range_dirty_lock(page, num, dirty);
}

unsigned long rust_ulp_h_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

static struct dma_buf *dmabuf_get(int fd, bool write)
{
	struct dma_buf *buf = dma_buf_get(fd);

	if (!IS_ERR(buf) && write && !(buf->file->f_mode & FMODE_WRITE)) {
		dma_buf_put(buf);
		return ERR_PTR(-EACCES);
	}
	return buf;
}

int rust_ulp_h_dmabuf_open(int fd, bool write, struct rust_ulp_h_dmabuf *out)
{
	struct dma_buf *buf = dmabuf_get(fd, write);
	struct iosys_map map;
	int err;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	err = -EOPNOTSUPP;
	/* A mapping that fails is a bug of the exporter's to the core, which warns. */
	if (!buf->ops->vmap)
		goto put;
	err = dma_buf_vmap_unlocked(buf, &map);
	if (err)
		goto put;
	err = -EOPNOTSUPP;
	if (map.is_iomem) {
		dma_buf_vunmap_unlocked(buf, &map);
		goto put;
	}
	out->buf = buf;
	out->vaddr = map.vaddr;
	out->size = buf->size;
	return 0;

put:
	dma_buf_put(buf);
	return err;
}

/* A static attachment: while it is mapped, the exporter keeps the memory where it is. */
int rust_ulp_h_dmabuf_attach(int fd, bool write, struct device *dev,
			     struct rust_ulp_h_dmabuf *out)
{
	struct dma_buf *buf = dmabuf_get(fd, write);
	struct dma_buf_attachment *attach;
	struct sg_table *sgt;

	if (IS_ERR(buf))
		return PTR_ERR(buf);
	attach = dma_buf_attach(buf, dev);
	if (IS_ERR(attach)) {
		dma_buf_put(buf);
		return PTR_ERR(attach);
	}
	sgt = dma_buf_map_attachment_unlocked(attach, write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE);
	if (IS_ERR(sgt)) {
		dma_buf_detach(buf, attach);
		dma_buf_put(buf);
		/* A signal while it waited for the exporter's fences. */
		return PTR_ERR(sgt) == -ERESTARTSYS ? -EINTR : PTR_ERR(sgt);
	}
	out->buf = buf;
	out->attach = attach;
	out->sgt = sgt;
	out->size = buf->size;
	out->write = write;
	return 0;
}

void rust_ulp_h_dmabuf_close(struct rust_ulp_h_dmabuf *buf)
{
	struct iosys_map map = IOSYS_MAP_INIT_VADDR(buf->vaddr);

	if (!buf->buf)
		return;
	if (buf->attach) {
		dma_buf_unmap_attachment_unlocked(buf->attach, buf->sgt,
						  buf->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE);
		dma_buf_detach(buf->buf, buf->attach);
	} else {
		dma_buf_vunmap_unlocked(buf->buf, &map);
	}
	dma_buf_put(buf->buf);
}

/*
 * What the device that is attached has for each of @count pages from @offset on, a multiple of the
 * page size. Exporters are to map whole pages: EOPNOTSUPP for one that does not.
 */
int rust_ulp_h_dmabuf_addresses(const struct rust_ulp_h_dmabuf *buf, size_t offset, u64 *out,
				size_t count)
{
	struct scatterlist *sg;
	size_t filled = 0;
	unsigned int i;

	for_each_sgtable_dma_sg((struct sg_table *)buf->sgt, sg, i) {
		u64 addr = sg_dma_address(sg);
		size_t left = sg_dma_len(sg);

		if (!PAGE_ALIGNED(addr) || !PAGE_ALIGNED(left))
			return -EOPNOTSUPP;
		if (offset >= left) {
			offset -= left;
			continue;
		}
		for (addr += offset, left -= offset; left && filled < count;
		     addr += PAGE_SIZE, left -= PAGE_SIZE)
			out[filled++] = addr;
		offset = 0;
	}
	return filled == count ? 0 : -EOPNOTSUPP;
}

/* NULL for what is no system memory. */
struct page *rust_ulp_h_dmabuf_page(const struct rust_ulp_h_dmabuf *buf, size_t offset)
{
	void *addr = buf->vaddr + offset;
	struct page *page;

	if (is_vmalloc_addr(addr))
		page = vmalloc_to_page(addr);
	else
		page = virt_addr_valid(addr) ? virt_to_page(addr) : NULL;
	if (!page || PageReserved(page) || is_zone_device_page(page))
		return NULL;
	return page;
}

struct workqueue_struct *rust_ulp_h_alloc_workqueue(void)
{
	return alloc_workqueue("rust_ulp", WQ_UNBOUND, 0);
}

void rust_ulp_h_flush_workqueue(struct workqueue_struct *wq)
{
	flush_workqueue(wq);
}

/* Fails rather than have the OOM killer look for somebody, of the cgroup or of the machine. */
struct page *rust_ulp_h_alloc_pages(int node, unsigned int order, bool quick)
{
	gfp_t gfp = GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN;

	if (order)
		gfp |= __GFP_COMP;
	gfp |= quick ? __GFP_NORETRY : __GFP_RETRY_MAYFAIL;
	return alloc_pages_node(node, gfp, order);
}

/* Drops the allocation's reference; mappings of a page hold their own. */
void rust_ulp_h_free_pages(struct page *page, unsigned int order)
{
	__free_pages(page, order);
}

void *rust_ulp_h_page_address(struct page *page)
{
	return page_address(page);
}

int rust_ulp_h_page_nid(struct page *page)
{
	return page_to_nid(page);
}

int rust_ulp_h_map_pages(struct vm_area_struct *vma, unsigned long addr, struct page *first,
			 unsigned long num)
{
	struct page *pages[16];

	while (num) {
		unsigned long batch = min(num, ARRAY_SIZE(pages)), left = batch, i;
		int err;

		for (i = 0; i < batch; i++)
			pages[i] = first + i;
		err = vm_insert_pages(vma, addr, pages, &left);
		if (err)
			return err;
		first += batch;
		addr += batch << PAGE_SHIFT;
		num -= batch;
	}
	return 0;
}

bool rust_ulp_h_vma_is_shared(const struct vm_area_struct *vma)
{
	return vma->vm_flags & VM_SHARED;
}

bool rust_ulp_h_node_online(int node)
{
	return node >= 0 && node < MAX_NUMNODES && node_online(node);
}

void rust_ulp_h_relax(void)
{
	cpu_relax();
	/*
	 * Under lazy preemption cond_resched() does nothing, and who was woken by
	 * another CPU has the lazy flag set only: without a look at it, a worker
	 * that must run here to end the wait runs at the next tick.
	 */
	if (test_thread_flag(TIF_NEED_RESCHED_LAZY))
		schedule();
	else
		cond_resched();
}

struct rust_ulp_uring *rust_ulp_h_uring_pdu(struct io_uring_cmd *cmd)
{
	return io_uring_cmd_to_pdu(cmd, struct rust_ulp_uring);
}

u32 rust_ulp_h_uring_op(const struct io_uring_cmd *cmd)
{
	return cmd->cmd_op;
}

/* The group of buffers of a command that completes many times, or -EINVAL. */
int rust_ulp_h_uring_group(const struct io_uring_cmd *cmd)
{
	if (!(cmd->flags & IORING_URING_CMD_MULTISHOT))
		return -EINVAL;
	return READ_ONCE(cmd->sqe->buf_group);
}

/* User space may write over the entry meanwhile: what is in the copy is what counts. */
void rust_ulp_h_uring_copy(const struct io_uring_cmd *cmd, void *to, size_t len)
{
	memcpy(to, cmd->sqe->cmd, len);
}

void rust_ulp_h_uring_mark(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	io_uring_cmd_mark_cancelable(cmd, issue_flags);
}

void rust_ulp_h_uring_done(struct io_uring_cmd *cmd, s32 res, u64 extra, unsigned int issue_flags,
			   bool big)
{
	__io_uring_cmd_done(cmd, res, extra, issue_flags, big);
}

/* From task work: fills a buffer of the group, and completes with how much it is. */
int rust_ulp_h_uring_post(struct io_uring_cmd *cmd, unsigned int group,
			  ssize_t (*fill)(void *source, void *to, size_t len), void *source)
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
	return sel.val < 0 ? sel.val : -ENOBUFS;
}

void rust_ulp_h_uring_end(struct io_uring_cmd *cmd, s32 res, bool big)
{
	__io_uring_cmd_done(cmd, res, 0, IO_URING_CMD_TASK_WORK_ISSUE_FLAGS, big);
}

void rust_ulp_h_eventfd_signal(struct eventfd_ctx *ctx)
{
	eventfd_signal(ctx);
}

static enum hrtimer_restart rust_ulp_h_timer_expired(struct hrtimer *hrtimer)
{
	struct rust_ulp_timer *timer = container_of(hrtimer, struct rust_ulp_timer, timer);

	timer->expired(timer->context);
	return HRTIMER_NORESTART;
}

void rust_ulp_h_timer_init(struct rust_ulp_timer *timer, void (*expired)(const void *context),
			   const void *context)
{
	timer->expired = expired;
	timer->context = context;
	hrtimer_setup(&timer->timer, rust_ulp_h_timer_expired, CLOCK_MONOTONIC,
		      HRTIMER_MODE_ABS_SOFT);
}

void rust_ulp_h_timer_start(struct rust_ulp_timer *timer, u64 at_ns)
{
	hrtimer_start(&timer->timer, ns_to_ktime(at_ns), HRTIMER_MODE_ABS_SOFT);
}

void rust_ulp_h_timer_cancel(struct rust_ulp_timer *timer)
{
	hrtimer_cancel(&timer->timer);
}

bool rust_ulp_h_is_killed(void)
{
	return fatal_signal_pending(current);
}

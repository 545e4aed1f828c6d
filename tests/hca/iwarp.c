// SPDX-License-Identifier: GPL-2.0
/*
 * iWARP: connections by the core's iw_cm, and what only such queue pairs have.
 *
 * A connection stands for the TCP stream and its MPA negotiation: an object that both ends share.
 * Without one a queue pair stays in INIT, and when it ends both queue pairs go to ERR, which they
 * do not leave.
 */
#include <linux/inet.h>
#include <linux/inetdevice.h>
#include <linux/sunrpc/addr.h>
#include <net/addrconf.h>
#include <rdma/iw_cm.h>

#include "hca.h"

struct end {
	struct iw_cm_id *id;
	/* With a reference; NULL at the end that has not accepted yet. */
	struct hca_qp *qp;
	/* The outstanding reads of the peer, and its own. */
	u8 ird, ord;
};

struct hca_conn {
	/* Of `requests`, until it is accepted or refused. */
	struct list_head list;
	unsigned long number;
	struct iw_cm_id *listener;
	struct end from, to;
};

struct listener {
	struct list_head list;
	struct iw_cm_id *id;
};

/* Of all below, and of `conn` of all queue pairs. The locks of queue pairs are taken inside. */
static DEFINE_SPINLOCK(lock);
static LIST_HEAD(listeners);
static LIST_HEAD(requests);
static unsigned long last_number;

bool hca_is_iwarp(struct hca *hca)
{
	return hca->rules->core_cap & RDMA_CORE_CAP_PROT_IWARP;
}

/* The core copies the private data of requests and replies. */
static void raise(struct end *end, enum iw_cm_event_type type, int status,
		  const void *data, u8 length)
{
	struct iw_cm_event event = {
		.event = type,
		.status = status,
		.local_addr = end->id->m_local_addr,
		.remote_addr = end->id->m_remote_addr,
		.private_data = (void *)data,
		.private_data_len = length,
		/* hw/cxgb4/cm.c:1406 and 1335; siw and irdma exchange them. */
		.ird = end->ord,
		.ord = end->ird,
	};

	end->id->event_handler(end->id, &event);
}

static void put_end(struct end *end)
{
	end->id->rem_ref(end->id);
	hca_put_qp(end->qp);
}

/* Ends a request, which is not accepted; called with the lock held. */
static void refuse(struct hca_conn *conn, int status, const void *data,
		   u8 length)
{
	list_del(&conn->list);
	conn->from.qp->conn = NULL;
	raise(&conn->from, IW_CM_EVENT_CONNECT_REPLY, status, data, length);
	put_end(&conn->from);
	kfree(conn);
}

/* Returns the request that the core has with `id`, unless it has ended. */
static struct hca_conn *find_request(struct iw_cm_id *id)
{
	struct hca_conn *conn;

	list_for_each_entry(conn, &requests, list)
		if (conn->number == (unsigned long)id->provider_data)
			return conn;
	return NULL;
}

static bool has_addr(struct hca *hca, const struct sockaddr_storage *addr)
{
	struct net *net = dev_net(hca->netdev);

	guard(rcu)
		();
	if (addr->ss_family == AF_INET)
		return __ip_dev_find(
			       net,
			       ((struct sockaddr_in *)addr)->sin_addr.s_addr,
			       false) == hca->netdev;
	return ipv6_chk_addr(net, &((struct sockaddr_in6 *)addr)->sin6_addr,
			     hca->netdev, 0);
}

/* Returns who listens at the address. */
static struct iw_cm_id *find_listener(const struct sockaddr_storage *addr)
{
	const struct sockaddr *want = (const struct sockaddr *)addr, *at;
	struct listener *listener;
	struct hca *hca;

	list_for_each_entry(listener, &listeners, list) {
		hca = to_hca(listener->id->device);
		at = (const struct sockaddr *)&listener->id->m_local_addr;
		if (at->sa_family == want->sa_family &&
		    rpc_get_port(at) == rpc_get_port(want) &&
		    (inet_addr_is_any(&listener->id->m_local_addr) ||
		     rpc_cmp_addr(at, want)) &&
		    has_addr(hca, addr) && hca_is_up(hca))
			return listener->id;
	}
	return NULL;
}

/* Passes the request to the listener; false when there is none, or it has no room. */
static bool request(struct hca_conn *conn, const void *data, u8 length)
{
	struct end *from = &conn->from;
	struct iw_cm_event event = {
		.event = IW_CM_EVENT_CONNECT_REQUEST,
		.local_addr = from->id->m_remote_addr,
		.remote_addr = from->id->m_local_addr,
		.private_data = (void *)data,
		.private_data_len = length,
		.provider_data = (void *)conn->number,
		.ird = from->ird,
		.ord = from->ord,
	};

	conn->listener = find_listener(&from->id->m_remote_addr);
	return conn->listener && hca_is_up(to_hca(from->id->device)) &&
	       !conn->listener->event_handler(conn->listener, &event);
}

static bool is_good(struct hca *hca, const struct hca_qp *qp,
		    const struct iw_cm_conn_param *param)
{
	return qp && !qp->conn && READ_ONCE(qp->state) == IB_QPS_INIT &&
	       param->ord <= hca->rules->max_rd_atomic &&
	       param->ird <= hca->rules->max_rd_atomic &&
	       param->private_data_len <= U8_MAX;
}

static int iw_connect(struct iw_cm_id *id, struct iw_cm_conn_param *param)
{
	struct hca *hca = to_hca(id->device);
	struct hca_qp *qp = hca_get_qp(hca, param->qpn);
	struct hca_conn *conn = kzalloc_obj(*conn);
	int err = hca_command(hca, "connect");

	if (!err && !conn)
		err = -ENOMEM;
	spin_lock_irq(&lock);
	if (!err && !is_good(hca, qp, param))
		err = -EINVAL;
	if (!err) {
		id->add_ref(id);
		conn->from = (struct end){
			.id = id, .qp = qp, .ird = param->ird, .ord = param->ord
		};
		conn->number = ++last_number;
		qp->conn = conn;
		list_add(&conn->list, &requests);
		/* hw/cxgb4/cm.c:2362, hw/irdma/cm.c:678: a reset of TCP. */
		if (!request(conn, param->private_data,
			     param->private_data_len))
			refuse(conn, -ECONNRESET, NULL, 0);
	}
	spin_unlock_irq(&lock);
	if (err) {
		kfree(conn);
		if (qp)
			hca_put_qp(qp);
	}
	return err;
}

/* Moves the queue pair from INIT to RTS, unless it has failed. */
static void establish(struct end *end, struct end *peer)
{
	struct hca_qp *qp = end->qp;

	spin_lock(&qp->lock);
	qp->dest = to_hca(peer->qp->ib.device)->number;
	qp->attr.dest_qp_num = peer->qp->ib.qp_num;
	qp->attr.max_rd_atomic = end->ord;
	qp->attr.max_dest_rd_atomic = end->ird;
	/* How long TCP tries: 7 times 67 ms. */
	qp->attr.timeout = 14;
	qp->attr.retry_cnt = 7;
	qp->retries = 7;
	if (qp->state == IB_QPS_INIT)
		qp->state = IB_QPS_RTS;
	spin_unlock(&qp->lock);
}

static int iw_accept(struct iw_cm_id *id, struct iw_cm_conn_param *param)
{
	struct hca *hca = to_hca(id->device);
	struct hca_qp *qp = hca_get_qp(hca, param->qpn);
	int err = hca_command(hca, "accept");
	struct hca_conn *conn;

	spin_lock_irq(&lock);
	conn = find_request(id);
	if (!conn) {
		err = -ECONNRESET;
	} else if (err || !is_good(hca, qp, param)) {
		err = err ?: -EINVAL;
		refuse(conn, -ECONNRESET, NULL, 0);
	} else {
		list_del(&conn->list);
		id->add_ref(id);
		conn->to = (struct end){
			.id = id,
			.qp = qp,
			.ird = param->ird,
			.ord = min_t(u32, param->ord, conn->from.ird),
		};
		conn->from.ord = min(conn->from.ord, conn->to.ird);
		qp->conn = conn;
		establish(&conn->from, &conn->to);
		establish(&conn->to, &conn->from);
		raise(&conn->to, IW_CM_EVENT_ESTABLISHED, 0, NULL, 0);
		raise(&conn->from, IW_CM_EVENT_CONNECT_REPLY, 0,
		      param->private_data, param->private_data_len);
	}
	spin_unlock_irq(&lock);
	if (err && qp)
		hca_put_qp(qp);
	return err;
}

static int iw_reject(struct iw_cm_id *id, const void *data, u8 length)
{
	struct hca_conn *conn;

	guard(spinlock_irq)
		(&lock);
	conn = find_request(id);
	if (!conn)
		return -ECONNRESET;
	refuse(conn, -ECONNREFUSED, data, length);
	return 0;
}

static int iw_create_listen(struct iw_cm_id *id, int backlog)
{
	struct listener *listener = kmalloc_obj(*listener);
	int err = hca_command(to_hca(id->device), "listen");

	if (!err && !listener)
		err = -ENOMEM;
	if (err) {
		kfree(listener);
		return err;
	}
	id->add_ref(id);
	listener->id = id;
	guard(spinlock_irq)
		(&lock);
	list_add(&listener->list, &listeners);
	return 0;
}

/* Resets requests that nobody has answered: hw/irdma/cm.c, irdma_dec_refcnt_listen(). */
static int iw_destroy_listen(struct iw_cm_id *id)
{
	struct listener *listener, *next;
	struct hca_conn *conn, *next_conn;

	guard(spinlock_irq)
		(&lock);
	list_for_each_entry_safe(conn, next_conn, &requests, list)
		if (conn->listener == id)
			refuse(conn, -ECONNRESET, NULL, 0);
	list_for_each_entry_safe(listener, next, &listeners, list) {
		if (listener->id == id) {
			list_del(&listener->list);
			id->rem_ref(id);
			kfree(listener);
		}
	}
	return 0;
}

/* Ends the connection of a queue pair that is in no state for one, and what its peer has of it. */
void hca_disconnect(struct hca_qp *qp)
{
	struct hca_conn *conn;
	unsigned long flags;

	if (!hca_is_iwarp(to_hca(qp->ib.device)))
		return;
	spin_lock_irqsave(&lock, flags);
	conn = qp->conn;
	if (conn && !conn->to.qp) {
		refuse(conn, -ECONNRESET, NULL, 0);
		conn = NULL;
	}
	if (conn) {
		conn->from.qp->conn = NULL;
		conn->to.qp->conn = NULL;
	}
	spin_unlock_irqrestore(&lock, flags);
	if (!conn)
		return;
	hca_fail(conn->from.qp);
	hca_fail(conn->to.qp);
	raise(&conn->from, IW_CM_EVENT_CLOSE, 0, NULL, 0);
	raise(&conn->to, IW_CM_EVENT_CLOSE, 0, NULL, 0);
	put_end(&conn->from);
	put_end(&conn->to);
	kfree(conn);
}

/* Only a connection leads to RTS: hw/cxgb4/qp.c:1902, hw/irdma/verbs.c, irdma_modify_qp(). */
int hca_iw_modify_qp(struct hca_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	enum ib_qp_state state = READ_ONCE(qp->state);

	if (mask & IB_QP_ACCESS_FLAGS)
		qp->attr.qp_access_flags = attr->qp_access_flags;
	if (!(mask & IB_QP_STATE))
		return 0;
	switch (attr->qp_state) {
	case IB_QPS_INIT:
	case IB_QPS_RTR:
		return state == IB_QPS_INIT ? 0 : -EINVAL;
	case IB_QPS_RTS:
		return state == IB_QPS_RTS ? 0 : -EINVAL;
	default:
		hca_fail(qp);
		return 0;
	}
}

/* Whether the wire has the operation: hw/cxgb4/qp.c:941, ib_to_fw_opcode(), and 660. */
bool hca_iw_has(const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_RDMA_READ:
		return wr->num_sge == 1;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_SEND_WITH_IMM:
		return false;
	default:
		return true;
	}
}

/*
 * The response to a READ is a message to a key of the sink, as a WRITE of the peer would be:
 * RFC 5040 4.4, core/rw.c:116, hw/cxgb4/qp.c:667.
 */
bool hca_iw_is_sink(struct hca *hca, const struct hca_segs *segs)
{
	const struct hca_mr *mr = segs->count ? segs->seg[0].mr : NULL;

	if (!segs->count || (mr && mr->access & IB_ACCESS_REMOTE_WRITE))
		return true;
	hca_broken(hca, "a READ into key %#x, which has no REMOTE_WRITE",
		   mr ? mr->ib.lkey | mr->key : HCA_DMA_LKEY);
	return false;
}

static int query_gid(struct ib_device *ib, u32 port, int index,
		     union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	memcpy(gid->raw, to_hca(ib)->netdev->dev_addr, ETH_ALEN);
	return 0;
}

static void iw_add_ref(struct ib_qp *qp)
{
	refcount_inc(&to_qp(qp)->refs);
}

static void iw_rem_ref(struct ib_qp *qp)
{
	hca_put_qp(to_qp(qp));
}

/* Without a reference: the core takes one while the queue pair cannot go. */
static struct ib_qp *iw_get_qp(struct ib_device *ib, int qpn)
{
	struct hca_qp *qp = xa_load(&to_hca(ib)->qps, qpn);

	return qp ? &qp->ib : NULL;
}

const struct ib_device_ops hca_iw_ops = {
	.driver_id = RDMA_DRIVER_CXGB4,
	.query_gid = query_gid,
	.iw_accept = iw_accept,
	.iw_add_ref = iw_add_ref,
	.iw_connect = iw_connect,
	.iw_create_listen = iw_create_listen,
	.iw_destroy_listen = iw_destroy_listen,
	.iw_get_qp = iw_get_qp,
	.iw_reject = iw_reject,
	.iw_rem_ref = iw_rem_ref,
};

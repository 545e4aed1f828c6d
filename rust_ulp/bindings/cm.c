// SPDX-License-Identifier: GPL-2.0
/*
 * The connection manager. See helpers.h.
 */
#include <linux/in6.h>

#include "helpers.h"

static void to_sockaddr(const struct rust_ulp_h_addr *addr,
			struct sockaddr_storage *out)
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

static void from_sockaddr(const struct sockaddr_storage *addr,
			  struct rust_ulp_h_addr *out)
{
	memset(out, 0, sizeof(*out));
	out->family = addr->ss_family;
	if (addr->ss_family == AF_INET6) {
		const struct sockaddr_in6 *sin6 =
			(const struct sockaddr_in6 *)addr;

		out->port = ntohs(sin6->sin6_port);
		out->scope_id = sin6->sin6_scope_id;
		memcpy(out->addr, &sin6->sin6_addr, sizeof(sin6->sin6_addr));
	} else if (addr->ss_family == AF_INET) {
		const struct sockaddr_in *sin =
			(const struct sockaddr_in *)addr;

		out->port = ntohs(sin->sin_port);
		memcpy(out->addr, &sin->sin_addr, sizeof(sin->sin_addr));
	}
}

/* Restricts the identifier to devices of the kind of @dev, for the kinds that the manager knows. */
struct rdma_cm_id *rust_ulp_h_cm_create(struct net *net, struct ib_device *dev,
					struct rust_ulp_cm_hook *hook)
{
	struct rdma_cm_id *id = __rdma_create_kernel_id(net, rust_ulp_cm_event,
							hook, RDMA_PS_TCP,
							IB_QPT_RC,
							THIS_MODULE->name);

	/* Fails for other kinds only. */
	if (!IS_ERR(id))
		rdma_restrict_node_type(id, dev->node_type);
	return id;
}

struct rust_ulp_cm_hook *rust_ulp_h_cm_hook(struct rdma_cm_id *id)
{
	return id->context;
}

/* Called in the handler of a request, whose identifier has the context of its listener. */
void rust_ulp_h_cm_set_hook(struct rdma_cm_id *id,
			    struct rust_ulp_cm_hook *hook)
{
	id->context = hook;
}

int rust_ulp_h_cm_bind(struct rdma_cm_id *id,
		       const struct rust_ulp_h_addr *addr)
{
	struct sockaddr_storage storage;

	to_sockaddr(addr, &storage);
	return rdma_bind_addr(id, (struct sockaddr *)&storage);
}

int rust_ulp_h_cm_resolve_addr(struct rdma_cm_id *id,
			       const struct rust_ulp_h_addr *src,
			       const struct rust_ulp_h_addr *dst,
			       unsigned long timeout_ms)
{
	struct sockaddr_storage from, to;

	to_sockaddr(dst, &to);
	if (src)
		to_sockaddr(src, &from);
	return rdma_resolve_addr(id, src ? (struct sockaddr *)&from : NULL,
				 (struct sockaddr *)&to, timeout_ms);
}

/* @ifindex: the interface that the identifier is bound to, 0 when it is bound to none. */
void rust_ulp_h_cm_addrs(struct rdma_cm_id *id, struct rust_ulp_h_addr *local,
			 struct rust_ulp_h_addr *peer, u32 *ifindex)
{
	const struct rdma_addr *addr = &id->route.addr;

	from_sockaddr(&addr->src_addr, local);
	from_sockaddr(&addr->dst_addr, peer);
	*ifindex = addr->dev_addr.bound_dev_if;
}

bool rust_ulp_h_cm_device_index(struct rdma_cm_id *id, u32 *index)
{
	struct ib_device *dev = READ_ONCE(id->device);

	if (!dev)
		return false;
	*index = dev->index;
	return true;
}

/* @ack_timeout: of a request, the Local ACK Timeout that the peer asks for; 1 stands for 0, too. */
bool rust_ulp_h_cm_path(struct rdma_cm_id *id, u8 *mtu, u8 *traffic_class,
			u8 *ack_timeout)
{
	const struct sa_path_rec *path = id->route.path_rec;

	if (!path)
		return false;
	*mtu = path->mtu;
	*traffic_class = path->traffic_class;
	/* cm_format_paths_from_req() */
	*ack_timeout = path->packet_life_time + 1;
	return true;
}

/*
 * Called between rdma_resolve_route() and rdma_connect(), which tells the peer these limits. 0
 * stands for that of the route.
 *
 * The time as cma_resolve_iboe_route() sets it after rdma_set_ack_timeout(). That function would
 * also hide the time that the manager computes from the peer's answer: see rdma_init_qp_attr(). On
 * InfiniBand, the time is that of the subnet administrator.
 */
void rust_ulp_h_cm_limit_path(struct rdma_cm_id *id, u8 mtu, u8 ack_timeout)
{
	struct sa_path_rec *path = id->route.path_rec;

	if (!path)
		return;
	if (mtu && path->mtu > mtu)
		path->mtu = mtu;
	if (ack_timeout && sa_path_is_roce(path))
		path->packet_life_time = ack_timeout - 1;
}

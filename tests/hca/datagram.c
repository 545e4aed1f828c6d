// SPDX-License-Identifier: GPL-2.0
/*
 * Datagrams: queue pairs of type UD, and queue pair 1, which carries the
 * connection manager's MADs.
 *
 * A datagram that nobody takes is lost; its sender does not hear of that.
 */
#include <linux/ip.h>
#include <net/ip.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_pack.h>

#include "hca.h"

/* The 40 bytes in front of a datagram: of IPv4 its header stands in the last 20. */
static u8 fill_grh(struct hca_qp *qp, struct hca_wqe *wqe,
		   const union ib_gid *sgid)
{
	union rdma_network_hdr *header = (void *)qp->grh;
	struct ib_grh *grh = &header->ibgrh;
	struct iphdr *ip = &header->roce4grh;
	u16 length = wqe->length;

	memset(header, 0, sizeof(qp->grh));
	if (!ipv6_addr_v4mapped((struct in6_addr *)sgid)) {
		grh->version_tclass_flow =
			cpu_to_be32(6 << 28 | wqe->ud.to.traffic_class << 20);
		grh->paylen = cpu_to_be16(length);
		grh->next_hdr = IPPROTO_UDP;
		grh->hop_limit = wqe->ud.to.hop_limit;
		grh->sgid = *sgid;
		grh->dgid = wqe->ud.to.dgid;
		return RDMA_NETWORK_IPV6;
	}
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = wqe->ud.to.traffic_class;
	ip->tot_len = cpu_to_be16(sizeof(*ip) + length);
	ip->ttl = wqe->ud.to.hop_limit;
	ip->protocol = IPPROTO_UDP;
	memcpy(&ip->saddr, sgid->raw + 12, 4);
	memcpy(&ip->daddr, wqe->ud.to.dgid.raw + 12, 4);
	ip->check = ip_fast_csum(ip, 5);
	return RDMA_NETWORK_IPV4;
}

static void deliver(struct hca_qp *qp, struct hca_qp *to, struct hca_wqe *wqe,
		    const union ib_gid *sgid)
{
	struct ib_wc wc = {
		.opcode = IB_WC_RECV,
		.byte_len = sizeof(qp->grh) + wqe->length,
		.src_qp = qp->ib.qp_num,
		.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE,
		.port_num = 1,
	};
	struct hca_segs *from = &qp->near;
	u32 qkey = wqe->ud.qkey;

	/* With the highest bit set the sender's own Q_Key counts. */
	if (qkey >> 31 && qp->ib.qp_num != 1)
		qkey = qp->attr.qkey;
	if (to->ib.qp_num != 1 && to->attr.qkey != qkey) {
		atomic_inc(&to_hca(to->ib.device)->bad_qkeys);
		return;
	}
	if (hca_take_recv(to, wc.byte_len, &qp->far, &wc.wr_id))
		return;
	wc.network_hdr_type = fill_grh(qp, wqe, sgid);
	if (wqe->opcode == IB_WR_SEND_WITH_IMM) {
		wc.wc_flags |= IB_WC_WITH_IMM;
		wc.ex.invalidate_rkey = wqe->ex;
	}
	/* The header is the first piece. */
	memmove(from->seg + 1, from->seg, from->count * sizeof(*from->seg));
	from->seg[0] =
		(struct hca_seg){ .ptr = qp->grh, .length = sizeof(qp->grh) };
	from->count++;
	from->length += sizeof(qp->grh);
	if (hca_copy(&qp->far, from, 0))
		wc.status = IB_WC_LOC_PROT_ERR;
	hca_segs_end(&qp->far);
	hca_recv_wc(to, &wc, wqe->flags & IB_SEND_SOLICITED);
}

enum ib_wc_status hca_send_datagram(struct hca_qp *qp, struct hca_wqe *wqe)
{
	struct hca *hca = to_hca(qp->ib.device);
	enum ib_wc_status status;
	union ib_gid sgid;
	struct hca_qp *to;
	int number;

	if (wqe->length > 4096)
		return IB_WC_LOC_LEN_ERR;
	status = hca_gather(qp, wqe, 0);
	if (status)
		return status;
	/* The last port is the one that is up. */
	if (rdma_query_gid(&hca->ib, hca->rules->ports, wqe->ud.to.sgid_index,
			   &sgid))
		return IB_WC_LOC_QP_OP_ERR;
	number = hca_find(hca, &wqe->ud.to.dgid, wqe->ud.to.dmac,
			  wqe->ud.to.dlid);
	to = hca_inbound(hca, number, wqe->ud.qpn);
	if (to) {
		if (to->ib.qp_type == IB_QPT_UD || to->ib.qp_type == IB_QPT_GSI)
			deliver(qp, to, wqe, &sgid);
		hca_inbound_end(to);
	}
	return IB_WC_SUCCESS;
}

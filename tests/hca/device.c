// SPDX-License-Identifier: GPL-2.0
/*
 * The devices: PCI functions of QEMU's `edu`, each with an RDMA device and a
 * netdev.
 *
 * The PCI function is there for its place behind the IOMMU alone.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/module.h>
#include <net/addrconf.h>
#include <rdma/ib_cache.h>

#include "hca.h"

/* A parameter of the module, which the other files know as a variable. */
#define PARAM(name, type, mode, text)                     \
	module_param_named(name, hca_##name, type, mode); \
	MODULE_PARM_DESC(name, text)

unsigned int hca_dma_faults;
EXPORT_SYMBOL_GPL(hca_dma_faults);
PARAM(dma_faults, uint, 0444, "accesses to addresses that are not mapped");

unsigned int hca_broken_rules;
EXPORT_SYMBOL_GPL(hca_broken_rules);
PARAM(broken_rules, uint, 0444, "calls that a driver need not expect");

unsigned int hca_fail_command;
EXPORT_SYMBOL_GPL(hca_fail_command);
PARAM(fail_command, uint, 0644, "the n-th command fails, 0 for none");

static char fail_name[32];
module_param_string(fail_name, fail_name, sizeof(fail_name), 0644);
MODULE_PARM_DESC(fail_name, "only commands of these names count for it");

static unsigned int hca_command_us;
unsigned int hca_completion_us, hca_context, hca_handler_cpu;
PARAM(command_us, uint, 0644, "microseconds that a command takes");
PARAM(completion_us, uint, 0644, "microseconds until one can be polled");
PARAM(context, uint, 0644, "that of handlers, on their vector's CPU");
PARAM(handler_cpu, uint, 0644, "the CPU of the last completion handler");

unsigned int hca_interrupt_ms, hca_lose_interrupt, hca_refuse_send;
PARAM(interrupt_ms, uint, 0644, "milliseconds that an interrupt is late");
PARAM(lose_interrupt, uint, 0644, "the n-th interrupt is lost, 0 for none");
PARAM(refuse_send, uint, 0644, "the n-th send is refused, 0 for none");

unsigned int hca_flush_register, hca_poll_ms, hca_deaf, hca_unheard;
unsigned int hca_fail_halfway, hca_lose_register, hca_lose_completion;
PARAM(lose_completion, uint, 0644, "the n-th completion is lost, 0 for none");
PARAM(fail_halfway, uint, 0644, "the n-th change of a QP fails, or n RESETs");
PARAM(lose_register, uint, 0644, "the next n REG_MR are never carried out");
PARAM(flush_register, uint, 0644, "the next n REG_MR or datagrams fail");
PARAM(poll_ms, uint, 0644, "milliseconds that a worker keeps completions");
PARAM(deaf, uint, 0644, "the adapter, 1 or 2, that receives nothing");
PARAM(unheard, uint, 0644, "number of messages that it has not received");

bool hca_stopped, hca_late_receive, hca_pause_storm, hca_hold_writes;
PARAM(late_receive, bool, 0644, "a receive completes in a QP's destruction");
PARAM(pause_storm, bool, 0644, "pause frames stop connected queue pairs");
PARAM(hold_writes, bool, 0644, "what is late of a Write does not land");

/* The devices by number. A reader is in an RCU read section. */
struct hca __rcu *hcas[2];
EXPORT_SYMBOL_GPL(hcas);
static DEFINE_MUTEX(hcas_lock);
static DEFINE_SPINLOCK(count_lock);

static void count(unsigned int *counter)
{
	HCA_LOCK(&count_lock);
	++*counter;
}

/* Counts down; returns how many there were. */
unsigned int hca_count_down(unsigned int *left)
{
	HCA_LOCK(&count_lock);
	return *left ? (*left)-- : 0;
}

/* What every command to the adapter does: it sleeps, and may fail. */
int hca_command(struct hca *hca, const char *name)
{
	unsigned int us = READ_ONCE(hca_command_us);

	might_sleep();
	if (us)
		usleep_range(us, us + us / 8);
	/* As mlx5 says it: mlx5/core/cmd.c, mlx5_internal_err_ret_value(). */
	if (READ_ONCE(hca->error) && !strstarts(name, "de") &&
	    strcmp(name, "modify_qp"))
		return -EIO;
	if ((!sysfs_streq(fail_name, "") && !strstr(fail_name, name)) ||
	    (READ_ONCE(hca_fail_command) != UINT_MAX &&
	     hca_count_down(&hca_fail_command) != 1))
		return 0;
	dev_info(&hca->pdev->dev, "%s fails, as was asked for\n", name);
	return -EIO;
}

static void walk_qps(struct hca *hca, void (*call)(struct hca_qp *qp))
{
	struct hca_qp *qp;
	unsigned long qpn;

	xa_for_each(&hca->qps, qpn, qp) {
		qp = hca_get_qp(hca, qpn);
		if (!qp)
			continue;
		call(qp);
		hca_put_qp(qp);
	}
}

/* Runs `call` for the adapter with a number, from 1, which stays. */
static int with_hca(unsigned int number, void (*call)(struct hca *hca))
{
	struct hca *hca;

	if (!number || number > ARRAY_SIZE(hcas))
		return -EINVAL;
	guard(mutex)
		(&hcas_lock);
	hca = rcu_dereference_protected(hcas[number - 1],
					lockdep_is_held(&hcas_lock));
	if (!hca)
		return -ENODEV;
	call(hca);
	return 0;
}

static void go_on(struct hca *hca)
{
	walk_qps(hca, hca_go_on);
}

/* The adapters carry out and flush nothing, until they go on. */
static int set_stop(const char *value, const struct kernel_param *param)
{
	int err = param_set_bool(value, param);

	if (!err) {
		with_hca(1, go_on);
		with_hca(2, go_on);
	}
	return err;
}

static const struct kernel_param_ops stop_ops = { .set = set_stop,
						  .get = param_get_bool };
module_param_cb(stop, &stop_ops, &hca_stopped, 0644);
MODULE_PARM_DESC(stop, "the adapters do nothing while it is set");

/* The event to raise; a port for those of ports. Of who writes a parameter: one at a time. */
static struct ib_event asked;

static void raise_qp(struct hca_qp *qp)
{
	if (qp->ib.qp_type == IB_QPT_GSI)
		return;
	if (asked.event == IB_EVENT_CQ_ERR)
		irq_work_queue(&to_cq(qp->ib.send_cq)->error);
	else if (asked.event != IB_EVENT_SRQ_ERR &&
		 asked.event != IB_EVENT_SRQ_LIMIT_REACHED)
		hca_qp_event(qp, asked.event);
	else if (qp->ib.srq)
		hca_srq_event(qp->ib.srq, asked.event);
}

static void raise(struct hca *hca)
{
	asked.device = &hca->ib;
	if (asked.event < IB_EVENT_DEVICE_FATAL ||
	    (asked.event >= IB_EVENT_SRQ_ERR &&
	     asked.event <= IB_EVENT_QP_LAST_WQE_REACHED))
		walk_qps(hca, raise_qp);
	else
		ib_dispatch_event(&asked);
}

/* "NUMBER EVENT PORT": an event of the port, or of all queue pairs and their queues. */
static int set_event(const char *value, const struct kernel_param *param)
{
	unsigned int number, event, port;

	if (sscanf(value, "%u %u %u", &number, &event, &port) != 3)
		return -EINVAL;
	asked = (struct ib_event){ .event = event, .element.port_num = port };
	return with_hca(number, raise);
}

static const struct kernel_param_ops event_ops = { .set = set_event };
module_param_cb(event, &event_ops, NULL, 0200);
MODULE_PARM_DESC(event, "raises an event: the adapter, its number, the port");

/* An internal error: all queue pairs fail, and stay so. */
static void fail(struct hca *hca)
{
	WRITE_ONCE(hca->error, true);
	/* A driver flushes without its adapter. */
	WRITE_ONCE(hca_stopped, false);
	walk_qps(hca, hca_fail);
	asked = (struct ib_event){ .event = IB_EVENT_DEVICE_FATAL,
				   .element.port_num = 1 };
	raise(hca);
}

static int set_error(const char *value, const struct kernel_param *param)
{
	unsigned int number;

	return kstrtouint(value, 0, &number) ?: with_hca(number, fail);
}

static const struct kernel_param_ops error_ops = { .set = set_error };
module_param_cb(internal_error, &error_ops, NULL, 0200);
MODULE_PARM_DESC(internal_error, "the adapter with this number fails");

/* Somebody broke a rule that adapters rely on. Returns -EINVAL. */
int hca_broken(struct hca *hca, const char *format, ...)
{
	struct va_format text = { .fmt = format };
	va_list args;

	va_start(args, format);
	text.va = &args;
	dev_err_ratelimited(&hca->pdev->dev, "rule broken: %pV\n", &text);
	va_end(args);
	count(&hca_broken_rules);
	return -EINVAL;
}

void hca_dma_fault(struct hca *hca, u64 addr, const char *why)
{
	dev_err_ratelimited(&hca->pdev->dev, "DMA fault: address %#llx: %s\n",
			    addr, why);
	count(&hca_dma_faults);
}

/* --- addresses --- */

static bool has_gid(struct hca *hca, const union ib_gid *gid)
{
	const struct ib_gid_attr *attr;

	/* The core has no table of one that is not registered. */
	if (!ib_device_try_get(&hca->ib))
		return false;
	attr = rdma_find_gid_by_port(&hca->ib, gid, IB_GID_TYPE_ROCE_UDP_ENCAP,
				     1, NULL);
	if (!IS_ERR(attr))
		rdma_put_gid_attr(attr);
	ib_device_put(&hca->ib);
	return !IS_ERR(attr);
}

/*
 * Returns the number of the device that `hca` reaches by the LID `dlid`, or on
 * Ethernet by the GID and the link address `dmac`, else -1.
 */
int hca_find(struct hca *hca, const union ib_gid *gid, const u8 *dmac, u32 dlid)
{
	bool ib = hca_is_ib(hca);
	struct hca *to;
	int n;

	guard(rcu)
		();
	for (n = 0; n < ARRAY_SIZE(hcas); n++) {
		to = rcu_dereference(hcas[n]);
		if (!to)
			continue;
		/* The last port is the one that is up. */
		if (ib ? dlid == hca_lid(to, to->rules->ports) :
			 ether_addr_equal(dmac, to->netdev->dev_addr) &&
				    has_gid(to, gid))
			return n;
	}
	return -1;
}

/* --- the netdev: what one sends the other receives --- */

static netdev_tx_t hca_xmit(struct sk_buff *skb, struct net_device *netdev)
{
	struct hca *self = *(struct hca **)netdev_priv(netdev), *peer;

	guard(rcu)
		();
	peer = rcu_dereference(hcas[!self->number]);
	skb_tx_timestamp(skb);
	if (peer)
		dev_forward_skb(peer->netdev, skb);
	else
		kfree_skb(skb);
	return NETDEV_TX_OK;
}

/* As mlx5 names them: mlx5/core/en_stats.c, pport_per_prio_pfc_stats_desc. */
static const char statistics[][ETH_GSTRING_LEN] = {
	"rx_prio3_pause",
	"tx_prio3_pause",
};

static int hca_sset_count(struct net_device *netdev, int sset)
{
	return sset == ETH_SS_STATS ? ARRAY_SIZE(statistics) : -EOPNOTSUPP;
}

static void hca_strings(struct net_device *netdev, u32 sset, u8 *data)
{
	memcpy(data, statistics, sizeof(statistics));
}

static void hca_statistics(struct net_device *netdev,
			   struct ethtool_stats *stats, u64 *data)
{
	struct hca *hca = *(struct hca **)netdev_priv(netdev);

	data[0] = atomic64_read(&hca->pauses);
	data[1] = 0;
}

static const struct ethtool_ops ethtool_ops = {
	.get_sset_count = hca_sset_count,
	.get_strings = hca_strings,
	.get_ethtool_stats = hca_statistics,
};

static const struct net_device_ops netdev_ops = {
	.ndo_start_xmit = hca_xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static int add_netdev(struct hca *hca)
{
	struct net_device *netdev = alloc_etherdev(sizeof(struct hca *));
	int err;

	if (!netdev)
		return -ENOMEM;
	*(struct hca **)netdev_priv(netdev) = hca;
	netdev->netdev_ops = &netdev_ops;
	netdev->ethtool_ops = &ethtool_ops;
	netdev->mtu = hca->rules->mtu;
	netdev->max_mtu = 9000;
	SET_NETDEV_DEV(netdev, &hca->pdev->dev);
	snprintf(netdev->name, sizeof(netdev->name), "hca%d", hca->number + 1);
	eth_hw_addr_random(netdev);
	err = register_netdev(netdev);
	if (err) {
		free_netdev(netdev);
		return err;
	}
	hca->netdev = netdev;
	return 0;
}

/* --- PCI --- */

/* Gives the device a number, by which others find it. */
static int publish(struct hca *hca)
{
	guard(mutex)
		(&hcas_lock);
	for (hca->number = 0; hca->number < ARRAY_SIZE(hcas); hca->number++)
		if (!rcu_access_pointer(hcas[hca->number]))
			break;
	if (hca->number == ARRAY_SIZE(hcas))
		return -ENOSPC;
	if (!hca_is_ib(hca) && add_netdev(hca))
		return -ENOMEM;
	rcu_assign_pointer(hcas[hca->number], hca);
	return 0;
}

static void unpublish(struct hca *hca)
{
	struct net_device *netdev = hca->netdev;

	mutex_lock(&hcas_lock);
	RCU_INIT_POINTER(hcas[hca->number], NULL);
	mutex_unlock(&hcas_lock);
	synchronize_rcu();
	if (!netdev)
		return;
	unregister_netdev(netdev);
	free_netdev(netdev);
}

static int hca_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct hca *hca;
	char name[IB_DEVICE_NAME_MAX];
	int err;

	err = pcim_enable_device(pdev);
	if (err)
		return err;
	pci_set_master(pdev);
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);

	hca = ib_alloc_device(hca, ib);
	if (!hca)
		return -ENOMEM;
	hca->rules = hca_find_rules();
	if (!hca->rules) {
		err = -EINVAL;
		goto dealloc;
	}
	hca->pdev = pdev;
	hca->domain = iommu_get_domain_for_dev(&pdev->dev);
	if (hca->domain && !iommu_is_dma_domain(hca->domain))
		hca->domain = NULL;
	xa_init_flags(&hca->qps, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&hca->mrs, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_IRQ);
	err = publish(hca);
	if (err)
		goto dealloc;

	ib_set_device_ops(&hca->ib, &hca_ops);
	hca->ib.ops.driver_id = hca->rules->driver;
	hca->ib.dev.parent = &pdev->dev;
	hca->ib.node_type = hca_is_iwarp(hca) ? RDMA_NODE_RNIC :
						RDMA_NODE_IB_CA;
	hca->ib.phys_port_cnt = hca->rules->ports;
	hca->ib.num_comp_vectors = num_possible_cpus() + 20;
	if (hca->rules->dma_lkey)
		hca->ib.local_dma_lkey = HCA_DMA_LKEY;
	hca->ib.node_guid = cpu_to_be64(hca_lid(hca, 0) | 1ULL << 40);
	strscpy(hca->ib.node_desc, "ulp_hca");
	if (hca->netdev) {
		addrconf_addr_eui48((u8 *)&hca->ib.node_guid,
				    hca->netdev->dev_addr);
		err = ib_device_set_netdev(&hca->ib, hca->netdev, 1);
		if (err)
			goto unpublish;
	}
	snprintf(name, sizeof(name), "hca%d", hca->number + 1);
	err = ib_register_device(&hca->ib, name, &pdev->dev);
	if (err)
		goto unpublish;
	pci_set_drvdata(pdev, hca);
	dev_info(&pdev->dev, "%s, %s, as %s\n", name,
		 hca->domain ? "behind an IOMMU" : "without an IOMMU",
		 hca->rules->name);
	return 0;

unpublish:
	if (hca->netdev)
		ib_device_set_netdev(&hca->ib, NULL, 1);
	unpublish(hca);
dealloc:
	ib_dealloc_device(&hca->ib);
	return err;
}

static void hca_remove(struct pci_dev *pdev)
{
	struct hca *hca = pci_get_drvdata(pdev);

	ib_unregister_device(&hca->ib);
	unpublish(hca);
	hca_free_refused_qps(hca);
	hca_free_refused_mrs(hca);
	WARN_ON(!xa_empty(&hca->qps) || !xa_empty(&hca->mrs));
	ib_dealloc_device(&hca->ib);
}

/* The number that QEMU gives to `-device edu`. */
static const struct pci_device_id hca_ids[] = { { PCI_DEVICE(0x1234, 0x11e8) },
						{} };
MODULE_DEVICE_TABLE(pci, hca_ids);

static struct pci_driver hca_driver = {
	.name = KBUILD_MODNAME,
	.id_table = hca_ids,
	.probe = hca_probe,
	.remove = hca_remove,
};

static int __init hca_init(void)
{
	int err = IS_ENABLED(CONFIG_VMAP_PFN) ? hca_add_exporter() : 0;

	if (err)
		return err;
	err = pci_register_driver(&hca_driver);
	if (err && IS_ENABLED(CONFIG_VMAP_PFN))
		hca_remove_exporter();
	return err;
}
module_init(hca_init);

static void __exit hca_exit(void)
{
	pci_unregister_driver(&hca_driver);
	if (IS_ENABLED(CONFIG_VMAP_PFN))
		hca_remove_exporter();
}
module_exit(hca_exit);

MODULE_DESCRIPTION("an RDMA adapter for tests");
MODULE_LICENSE("GPL");

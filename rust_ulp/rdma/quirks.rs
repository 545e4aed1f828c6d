// SPDX-License-Identifier: GPL-2.0

//! The properties of drivers that no attribute of a device reports.
//!
//! Each row names the function that was read, in Linux 7.2.12. A driver without a row of a rule was
//! not read for it, or does not have the property. No other file of the module names a driver by
//! its number. `scripts/quirks` writes docs/providers.md from the rows.

use crate::bindings;
use kernel::prelude::*;

/// A property of a driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// REG_MR honors the page size of a region. A region of another driver has pages of
    /// [`PAGE_SIZE`](kernel::page::PAGE_SIZE): the adapter would take the first bytes of each larger
    /// page for the whole, and reach memory of other owners. [`Rule::ShortKeys`] limits irdma to pages
    /// of the kernel.
    LargePages,
    /// A key covers no more than [`PAGE_SIZE`](kernel::page::PAGE_SIZE) bytes for each page that its
    /// region was allocated for, so that larger pages have no use.
    ShortKeys,
    /// The adapter translates at most that many pages under one key, although the driver reports
    /// more.
    MaxPages(u32),
    /// The driver refuses to post atomics of kernel queue pairs.
    NoAtomics,
    /// REG_MR does not give a peer the right to atomics.
    NoRemoteAtomics,
    /// The driver has no `IB_WR_LOCAL_INV`, and warns of it.
    NoLocalInv,
    /// A key is invalidated before its region is deregistered. That alone does not end a message of a
    /// peer that is being written there, or the driver hides a failure. On other drivers,
    /// deregistering alone revokes a key, or fails.
    InvalidateFirst,
    /// The driver reports success although its adapter failed to revoke the key. A region whose key
    /// could not be invalidated before is kept. Where the driver has no `IB_WR_LOCAL_INV`, as hns, the
    /// module does not read this, and cannot know that a peer still has access.
    HidesFailure,
    /// The driver creates shared receive queues for the kernel, and raises
    /// `IB_EVENT_QP_LAST_WQE_REACHED`.
    LastWqe,
    /// The driver takes the receives of a shared receive queue in the order of their posting. Others
    /// were not read for it.
    OrderedSrq,
    /// Send with Invalidate was tried. The module offers it on no other driver.
    SendWithInv,
    /// The driver may keep a packet whose queue pair it cannot destroy before another one comes, see
    /// `Qp::release_packets`.
    KeepsPackets,
    /// The driver takes the inline data of a datagram for an element.
    NoUdInline,
    /// The driver moves a queue pair that is to be reset to ERR, says RESET, and refuses each way from
    /// there.
    NoReset,
    /// Some adapters of the driver have no fast registration, and say so in their attributes, which
    /// decide; the module does not read this.
    NoFastReg,
    /// The driver creates no queue pairs of type RC for users of the kernel.
    NoRc,
    /// The driver creates no queue pairs of type UC.
    NoUc,
    /// The driver creates no queue pairs of type UD.
    NoUd,
}

/// A row of [`QUIRKS`].
struct Quirk {
    /// `enum rdma_driver_id`.
    driver: u32,
    rule: Rule,
    /// The function that was read, below drivers/infiniband.
    source: &'static str,
    /// The personality of the lab's adapter that enforces the rule; `-` for none.
    personality: &'static str,
}

const fn row(driver: u32, rule: Rule, source: &'static str, personality: &'static str) -> Quirk {
    Quirk {
        driver,
        rule,
        source,
        personality,
    }
}

/// The module that drives the lab's adapter, whose driver number is that of any unknown driver.
pub(super) const LAB: &CStr = c"ulp_hca";

/// The properties of all drivers.
#[rustfmt::skip]
const QUIRKS: &[Quirk] = &[
    row(bindings::RDMA_DRIVER_BNXT_RE,    Rule::LargePages,      "hw/bnxt_re/ib_verbs.c:bnxt_re_build_reg_wqe",   "bnxt"),
    row(bindings::RDMA_DRIVER_HNS,        Rule::LargePages,      "hw/hns/hns_roce_hw_v2.c:set_frmr_seg",          "hns"),
    row(bindings::RDMA_DRIVER_IONIC,      Rule::LargePages,      "hw/ionic/ionic_datapath.c:ionic_prep_reg",      "ionic"),
    row(bindings::RDMA_DRIVER_IRDMA,      Rule::LargePages,      "hw/irdma/ctrl.c:irdma_sc_mr_fast_register",     "irdma"),
    row(bindings::RDMA_DRIVER_MLX4,       Rule::LargePages,      "hw/mlx4/qp.c:set_reg_seg",                      "mlx4"),
    row(bindings::RDMA_DRIVER_MLX5,       Rule::LargePages,      "hw/mlx5/wr.c:set_reg_mkey_seg",                 "mlx5"),
    row(bindings::RDMA_DRIVER_QEDR,       Rule::LargePages,      "hw/qedr/verbs.c:qedr_prepare_reg",              "qedr"),
    row(bindings::RDMA_DRIVER_RXE,        Rule::LargePages,      "sw/rxe/rxe_mr.c:rxe_set_page",                  "-"),
    row(bindings::RDMA_DRIVER_UNKNOWN,    Rule::LargePages,      "tests/hca/memory.c:hca_register",               "plain"),

    // REG_MR has the length in a field of the key, STAGLEN, which ALLOC_STAG limited to that.
    row(bindings::RDMA_DRIVER_IRDMA,      Rule::ShortKeys,       "hw/irdma/verbs.c:irdma_alloc_mr",               "irdma"),

    // `irdma_post_send()` passes the index and the first page of a table of one level. Above 512
    // pages `irdma_set_page()` fills one of two.
    row(bindings::RDMA_DRIVER_IRDMA,      Rule::MaxPages(512),   "hw/irdma/verbs.c:irdma_post_send",              "irdma"),
    // It takes the address of a region for the DMA address of its first page.
    row(bindings::RDMA_DRIVER_OCRDMA,     Rule::MaxPages(0),     "hw/ocrdma/ocrdma_verbs.c:ocrdma_build_reg",     "ocrdma"),
    // Above, `qedr_prepare_pbl_tbl()` makes a table of two levels, and `qedr_set_page()` writes the
    // pages over its first level.
    row(bindings::RDMA_DRIVER_QEDR,       Rule::MaxPages(8192),  "hw/qedr/verbs.c:qedr_set_page",                 "qedr"),
    // It refuses larger regions, whatever its device reports.
    row(bindings::RDMA_DRIVER_VMW_PVRDMA, Rule::MaxPages(128),   "hw/vmw_pvrdma/pvrdma_mr.c:pvrdma_alloc_mr",     "pvrdma"),

    row(bindings::RDMA_DRIVER_MLX5,       Rule::NoAtomics,       "hw/mlx5/wr.c:handle_qpt_rc",                    "mlx5"),

    // It leaves `remote_atomics_en` 0, which only `irdma_hwreg_mr()` sets.
    row(bindings::RDMA_DRIVER_IRDMA,      Rule::NoRemoteAtomics, "hw/irdma/verbs.c:irdma_post_send",              "irdma"),

    row(bindings::RDMA_DRIVER_HNS,        Rule::NoLocalInv,      "hw/hns/hns_roce_hw_v2.c:set_rc_opcode",         "hns"),

    // These drivers free the region and report success when the command of the adapter fails.
    row(bindings::RDMA_DRIVER_ERDMA,      Rule::InvalidateFirst, "hw/erdma/erdma_verbs.c:erdma_dereg_mr",         "erdma"),
    row(bindings::RDMA_DRIVER_VMW_PVRDMA, Rule::InvalidateFirst, "hw/vmw_pvrdma/pvrdma_mr.c:pvrdma_dereg_mr",     "pvrdma"),
    // The responder holds the region until the message ends. After 50 s the region is freed all the
    // same.
    row(bindings::RDMA_DRIVER_RXE,        Rule::InvalidateFirst, "sw/rxe/rxe_pool.c:__rxe_cleanup",               "-"),

    row(bindings::RDMA_DRIVER_ERDMA,      Rule::HidesFailure,    "hw/erdma/erdma_verbs.c:erdma_dereg_mr",         "erdma"),
    // It frees the region when DESTROY_MPT fails, as when a mailbox times out, and only warns.
    row(bindings::RDMA_DRIVER_HNS,        Rule::HidesFailure,    "hw/hns/hns_roce_mr.c:hns_roce_mr_free",         "hns"),
    row(bindings::RDMA_DRIVER_VMW_PVRDMA, Rule::HidesFailure,    "hw/vmw_pvrdma/pvrdma_mr.c:pvrdma_dereg_mr",     "pvrdma"),

    row(bindings::RDMA_DRIVER_BNXT_RE,    Rule::LastWqe,         "hw/bnxt_re/main.c:bnxt_re_handle_qp_async_event", "bnxt"),
    row(bindings::RDMA_DRIVER_HFI1,       Rule::LastWqe,         "sw/rdmavt/qp.c:rvt_qp_mr_clean",                "opa"),
    row(bindings::RDMA_DRIVER_HNS,        Rule::LastWqe,         "hw/hns/hns_roce_qp.c:hns_roce_ib_qp_event",     "hns"),
    row(bindings::RDMA_DRIVER_MLX4,       Rule::LastWqe,         "hw/mlx4/qp.c:mlx4_ib_handle_qp_event",          "mlx4"),
    row(bindings::RDMA_DRIVER_MLX5,       Rule::LastWqe,         "hw/mlx5/qp.c:mlx5_ib_handle_qp_event",          "mlx5"),
    row(bindings::RDMA_DRIVER_RXE,        Rule::LastWqe,         "sw/rxe/rxe_resp.c:flush_recv_queue",            "-"),

    row(bindings::RDMA_DRIVER_RXE,        Rule::OrderedSrq,      "sw/rxe/rxe_resp.c:get_srq_wqe",                 "-"),

    row(bindings::RDMA_DRIVER_RXE,        Rule::SendWithInv,     "sw/rxe/rxe_resp.c:invalidate_rkey",             "-"),

    row(bindings::RDMA_DRIVER_RXE,        Rule::KeepsPackets,    "sw/rxe/rxe_task.c:rxe_enable_task",             "-"),

    row(bindings::RDMA_DRIVER_HNS,        Rule::NoUdInline,      "hw/hns/hns_roce_hw_v2.c:set_ud_wqe",            "hns"),

    row(bindings::RDMA_DRIVER_IRDMA,      Rule::NoReset,         "hw/irdma/verbs.c:irdma_modify_qp_roce",         "irdma"),

    // Only from HIP09 on.
    row(bindings::RDMA_DRIVER_HNS,        Rule::NoFastReg,       "hw/hns/hns_roce_main.c:hns_roce_query_device",  "hip08"),
    row(bindings::RDMA_DRIVER_MANA,       Rule::NoFastReg,       "hw/mana/device.c:mana_ib_dev_ops",              "mana"),
    // As `bmme_flags` of its firmware say.
    row(bindings::RDMA_DRIVER_MLX4,       Rule::NoFastReg,       "hw/mlx4/main.c:mlx4_ib_query_device",           "-"),
    // With `umr_modify_entity_size_disabled`.
    row(bindings::RDMA_DRIVER_MLX5,       Rule::NoFastReg,       "hw/mlx5/main.c:mlx5_ib_query_device",           "vf"),
    row(bindings::RDMA_DRIVER_MTHCA,      Rule::NoFastReg,       "hw/mthca/mthca_provider.c:mthca_dev_ops",       "-"),

    row(bindings::RDMA_DRIVER_MANA,       Rule::NoRc,            "hw/mana/qp.c:mana_ib_create_rc_qp",             "mana"),

    row(bindings::RDMA_DRIVER_BNXT_RE,    Rule::NoUc,            "hw/bnxt_re/ib_verbs.c:__from_ib_qp_type",       "bnxt"),
    row(bindings::RDMA_DRIVER_ERDMA,      Rule::NoUc,            "hw/erdma/erdma_verbs.c:erdma_qp_validate_attr", "erdma"),
    row(bindings::RDMA_DRIVER_HNS,        Rule::NoUc,            "hw/hns/hns_roce_qp.c:check_qp_type",            "hns"),
    // It makes one, which no path brings to RTR: only reliable ones have a header of their packets.
    row(bindings::RDMA_DRIVER_IONIC,      Rule::NoUc,            "hw/ionic/ionic_controlpath.c:ionic_create_qp",  "ionic"),
    row(bindings::RDMA_DRIVER_IRDMA,      Rule::NoUc,            "hw/irdma/verbs.c:irdma_validate_qp_attrs",      "irdma"),
    row(bindings::RDMA_DRIVER_QEDR,       Rule::NoUc,            "hw/qedr/verbs.c:qedr_check_qp_attrs",           "qedr"),
    row(bindings::RDMA_DRIVER_VMW_PVRDMA, Rule::NoUc,            "hw/vmw_pvrdma/pvrdma_qp.c:pvrdma_create_qp",    "pvrdma"),

    row(bindings::RDMA_DRIVER_QEDR,       Rule::NoUd,            "hw/qedr/verbs.c:qedr_check_qp_attrs",           "qedr"),
];

/// Returns whether the driver with the number `driver` has the property `rule`.
pub(super) fn has(driver: u32, rule: Rule) -> bool {
    QUIRKS
        .iter()
        .any(|quirk| quirk.driver == driver && quirk.rule == rule)
}

/// Returns the sizes of pages, one for each bit, that the driver with the number `driver` registers.
/// `cap` has those that it reports. `is_lab` returns whether [`LAB`] drives the device.
pub(super) fn page_sizes(driver: u32, cap: u64, is_lab: impl FnOnce() -> bool) -> u64 {
    let large =
        has(driver, Rule::LargePages) && (driver != bindings::RDMA_DRIVER_UNKNOWN || is_lab());
    let page = kernel::page::PAGE_SIZE as u64;
    if !large {
        cap & page
    } else if has(driver, Rule::ShortKeys) {
        cap & (page | (page - 1))
    } else {
        cap
    }
}

/// Returns how many pages under one key the driver with the number `driver` handles at most.
pub(super) fn max_pages(driver: u32) -> u32 {
    QUIRKS
        .iter()
        .find_map(|quirk| match quirk.rule {
            Rule::MaxPages(most) if quirk.driver == driver => Some(most),
            _ => None,
        })
        .unwrap_or(u32::MAX)
}

// SPDX-License-Identifier: MIT OR Apache-2.0

//! The calls of libibverbs and librdmacm, and their counterparts in this crate.
//!
//! What is missing in the last column is not offered. Objects are destroyed when their last reference
//! is dropped, so that there is no counterpart of `ibv_destroy_*`, `ibv_dealloc_*` and `rdma_destroy_*`.
//!
//! # Devices and ports
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_get_device_list` | [`Device::list`] |
//! | `ibv_open_device`, `ibv_close_device` | [`Device::open`], [`Device::open_default`] |
//! | `ibv_query_device`, `ibv_query_device_ex` | [`Device::info`], [`Device::limits`] |
//! | `ibv_query_port` | [`Device::port`] |
//! | `ibv_query_gid`, `ibv_query_gid_ex`, `ibv_query_gid_table` | [`Device::gids`], [`Device::default_gid`] |
//! | `ibv_query_pkey` | [`Device::pkey`] |
//! | `ibv_get_async_event`, `ibv_ack_async_event` | [`Device::events`]: [`Events::wait`], [`Events::next_event`]; nothing is acknowledged |
//! | `ibv_fork_init` | not needed: a child does not inherit the mappings, and a buffer of [`Pd::register_raw`] stays one of the parent's memory |
//! | `ibv_wc_status_str`, `ibv_port_state_str`, `ibv_event_type_str` | `Display` of [`Status`]; `Debug` of [`PortState`] and [`EventKind`] |
//!
//! # Memory
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_alloc_pd` | [`Device::alloc_pd`] |
//! | `ibv_reg_mr` | [`Pd::alloc_buffer`] or [`Pd::user_memory_builder`] for the memory, [`Buffer::grant`] for the peer's rights |
//! | `ibv_reg_mr` of memory that the program has | [`Pd::register_raw`] |
//! | `ibv_reg_dmabuf_mr` | [`Pd::dmabuf_builder`] |
//! | `ibv_dereg_mr` | [`Grant::revoke`] ends the peer's access; the drop of the [`Buffer`] frees the memory |
//! | `ibv_rereg_mr` | [`Grant::revoke`], and another [`Grant`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw` | [`Buffer::grant_with`] with [`GrantOptions::bound_to`] |
//! | `ibv_sge`, `lkey` | [`LocalSlice`], from [`Buffer::slice`] |
//! | address and `rkey` of a peer | [`RemoteSlice`] |
//! | `ibv_reg_mr` with `IBV_ACCESS_ON_DEMAND`, `ibv_advise_mr`, `ibv_alloc_dm` | |
//!
//! # Completions
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_create_cq`, `ibv_create_cq_ex` | [`Device::create_cq`], [`Device::cq_builder`] |
//! | `ibv_poll_cq`, `ibv_start_poll`, `ibv_next_poll` | [`Cq::poll`], [`Cq::poll_into`] |
//! | `ibv_create_comp_channel`, `ibv_req_notify_cq`, `ibv_get_cq_event`, `ibv_ack_cq_events` | [`Cq::wait`], [`Cq::wait_for`]; [`Cq::eventfd`] for `poll` and `epoll` |
//! | `ibv_wc` | [`Completion`]; [`Completion::check`] and [`Completion::ok`] turn its status into an error |
//! | `ibv_resize_cq`, `ibv_modify_cq` | |
//!
//! # Queue pairs
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_create_qp`, `ibv_create_qp_ex` | [`Pd::qp_builder`], [`QpBuilder`] |
//! | `ibv_modify_qp` to RTR and RTS | [`PreparedQp::connect`] with an [`Endpoint`], or [`PreparedQp::modify`] step by step |
//! | `ibv_modify_qp` to ERR | [`Qp::modify`] with [`QpAttr::to`]; [`Qp::cancel_all`] |
//! | `ibv_query_qp` | [`Qp::query`] |
//! | `ibv_post_send` | [`Qp::post`]; a list: [`Qp::batch`], [`Device::batch`] |
//! | `ibv_post_recv` | [`Qp::post_recv`], [`PreparedQp::post_recv`] |
//! | `IBV_WR_RDMA_WRITE`, `_WITH_IMM` | [`Write`], [`Write::imm`] |
//! | `IBV_WR_RDMA_READ` | [`Read`] |
//! | `IBV_WR_SEND`, `_WITH_IMM`, `_WITH_INV` | [`Send`], [`Send::imm`], [`SendInvalidate`] |
//! | `IBV_WR_ATOMIC_CMP_AND_SWP`, `IBV_WR_ATOMIC_FETCH_AND_ADD` | [`CompareSwap`], [`FetchAdd`] |
//! | `IBV_SEND_SIGNALED`, `_INLINE`, `_FENCE`, `_SOLICITED` | [`Write::signaled`], [`Write::inline`], [`Write::fenced`], [`Write::solicited`] |
//! | `ibv_create_srq`, `ibv_post_srq_recv` | [`Pd::srq_builder`], [`Srq::post_recv`] |
//! | `ibv_modify_srq`, `ibv_query_srq` | [`Srq::arm_limit`], [`Srq::query`] |
//! | `ibv_create_ah`, `ibv_create_ah_from_wc` | [`Pd::create_ah`], [`Qp::address`], [`Qp::reply_to`] |
//! | `ibv_open_xrcd`, `ibv_create_wq`, `ibv_create_flow`, `ibv_attach_mcast` | |
//!
//! # Connections
//!
//! | librdmacm | here |
//! |---|---|
//! | `rdma_create_event_channel`, `rdma_create_id`, `rdma_get_cm_event` | not needed: calls wait, or [`Device::events`] |
//! | `rdma_getaddrinfo`, `rdma_resolve_addr`, `rdma_resolve_route`, `rdma_create_qp`, `rdma_connect` | [`PreparedQp::connect_cm`] |
//! | `rdma_bind_addr`, `rdma_listen` | [`cm::Listener::bind`] |
//! | `rdma_get_request` | [`cm::Listener::next_request`] |
//! | `rdma_accept`, `rdma_establish` | [`cm::Request::accept`] |
//! | `rdma_reject` | [`cm::Request::reject`] |
//! | `rdma_disconnect` | [`cm::Connection::disconnect`] |
//! | `rdma_get_local_addr`, `rdma_get_peer_addr` | [`cm::Connection::local_addr`], [`cm::Connection::peer_addr`] |
//! | the program's own exchange over a socket | [`PreparedQp::connect_tcp`], [`PreparedQp::accept_tcp`] |
//! | `rdma_join_multicast`, `rdma_migrate_id`, `rsocket` | |

#[allow(unused_imports)]
use crate::{cq::*, device::*, events::*, grant::*, qp::*, wr::*, *};

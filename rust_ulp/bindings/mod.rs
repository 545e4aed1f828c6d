// SPDX-License-Identifier: GPL-2.0

//! The output of bindgen for `bindings_helper.h`. Only `rdma/` and `ext/` may use it.

#![allow(
    clippy::all,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    dead_code,
    unused_imports
)]

use kernel::{
    bindings::{
        completion,
        dentry,
        device,
        io_uring_cmd,
        list_head,
        lock_class_key,
        lockdep_map,
        mm_struct,
        net,
        page,
        percpu_ref,
        percpu_ref_func_t,
        poll_table_struct,
        refcount_t,
        scatterlist,
        seq_file,
        sg_table,
        spinlock_t,
        vm_area_struct,
        work_func_t,
        work_struct,
        workqueue_struct, //
    },
    ffi, //
};

/// Declares C structs that are only ever used behind a pointer.
macro_rules! incomplete {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name {
            _data: (),
            _marker: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,
        }
    )* };
}

incomplete! {
    ib_device ib_pd ib_cq ib_qp ib_mr ib_ah ib_srq ib_xrcd
    ib_rwq_ind_table ib_gid_attr ib_client_nl_info ib_udata ib_wq ib_ucontext net_device sockaddr
    rdma_cm_id rdma_cgroup user_struct
}

include!(env!("RUST_ULP_BINDINGS"));

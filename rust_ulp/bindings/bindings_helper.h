/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads: the verbs, the connection manager, our helpers and our ABI.
 */
#include <rdma/ib_verbs.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>

#include "helpers.h"
#include "rust_ulp.h"

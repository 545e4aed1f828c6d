/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The input of bindgen: the verbs, the connection manager, helpers, the ABI and tracepoints.
 */
#include <rdma/ib_verbs.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>

#include "cm.c"
#include "dmabuf.c"
#include "ib.c"
#include "mm.c"
#include "sync.c"
#include "uring.c"
#include "rust_ulp.h"
#include "ulp_trace.h"

/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads: the verbs, our helpers and our ABI.
 */
#include <rdma/ib_verbs.h>
#include <rdma/ib_cache.h>

#include "helpers.h"
#include "rust_ulp.h"

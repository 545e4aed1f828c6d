# SPDX-License-Identifier: GPL-2.0
#? starter fails: pingpong-status
# Commands of the tools that every RDMA system has, and of this module's. `h1:` runs on the first
# host, which has rxe1 and 10.9.0.1, `h2:` on the second one. The server is started first.
# learner 1: messages from h2 to h1 and back
#? h1: ibv_rc_pingpong
#? h2: ibv_rc_pingpong 10.9.0.1
h1: ibv_rc_pingpong -d rxe1 -g 1 -n 100
h2: ibv_rc_pingpong -d rxe2 -g 1 -n 100 10.9.0.1
# end 1
# learner 2: the bandwidth of RDMA Writes of 64 KiB
#? h1: ib_write_bw
#? h2: ib_write_bw 10.9.0.1
h1: ib_write_bw -d rxe1 -x 1 -s 65536 -n 100
h2: ib_write_bw -d rxe2 -x 1 -s 65536 -n 100 10.9.0.1
# end 2
# learner 3: the latency of RDMA Writes of 8 bytes, by perftest and by `ulp bench`
#? h1: ib_write_lat
#? h2: ib_write_lat 10.9.0.1
#? h1: ulp bench serve
#? h2: ulp bench write bw 10.9.0.1
h1: ib_write_lat -d rxe1 -x 1 -s 8 -n 100
h2: ib_write_lat -d rxe2 -x 1 -s 8 -n 100 10.9.0.1
h1: ulp bench serve
h2: ulp bench write lat -n 100 10.9.0.1
# end 3

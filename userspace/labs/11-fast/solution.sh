# SPDX-License-Identifier: GPL-2.0
#? starter fails: study
# Commands: `h1:` runs on the first host, `h2:` on the second one. The server is started first.
# learner 6: the table of `ulp bench study`. With `-n 256 --repeat 1` it takes the least time
#? h1: ulp bench serve
#? h2: ulp bench send rate -e -n 256 10.9.0.1
h1: ulp bench serve
h2: ulp bench study -e -n 256 --repeat 1 10.9.0.1
# end 6

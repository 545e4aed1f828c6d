// SPDX-License-Identifier: MIT OR Apache-2.0

//! How fast a `Buffer` copies, beside `memcpy`: `cargo bench -p rust-ulp --bench copy`.
//!
//! Prints a line for each length and alignment: GB/s in, out, of `memcpy`, and their ratios.

#[allow(dead_code)]
#[path = "../src/copy.rs"]
mod copy;

use std::hint::black_box;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// How long one figure is measured.
const TIME: Duration = Duration::from_millis(100);

/// Returns how many GB/s `copy` moves, which moves `len` bytes at a time.
fn speed(len: usize, mut copy: impl FnMut()) -> f64 {
    copy();
    let (start, mut rounds) = (Instant::now(), 0u64);
    loop {
        for _ in 0..(1 << 20) / len.min(1 << 20) {
            copy();
            rounds += 1;
        }
        let time = start.elapsed();
        if time >= TIME {
            return rounds as f64 * len as f64 / time.as_nanos() as f64;
        }
    }
}

fn main() {
    println!("   bytes offset   in GB/s  out GB/s  memcpy GB/s  in/memcpy  out/memcpy");
    for len in [64, 1024, 4096, 64 << 10, 1 << 20, 16 << 20] {
        let words: Vec<_> = (0..len / 8 + 2).map(|n| AtomicU64::new(n as u64)).collect();
        let (src, mut dst) = (vec![1u8; len], vec![2u8; len]);
        for offset in [0, 3] {
            let to_buffer = speed(len, || copy::copy_in(black_box(&words), offset, &src));
            let from_buffer = speed(len, || {
                copy::copy_out(black_box(&words), offset, black_box(&mut dst));
            });
            let plain = speed(len, || black_box(&mut dst).copy_from_slice(black_box(&src)));
            println!(
                "{len:8} {offset:6} {to_buffer:9.1} {from_buffer:9.1} {plain:12.1} {:10.2} {:11.2}",
                to_buffer / plain,
                from_buffer / plain
            );
        }
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0

//! The types of numbers, the vector of each rank, and the sums that are expected.

use clap::ValueEnum;
use half::{bf16, f16};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The type of the numbers of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// IEEE 754, 32 bits
    F32,
    /// IEEE 754, 16 bits: 11 bits of precision
    F16,
    /// The upper half of f32: 8 bits of precision
    Bf16,
}

#[cfg(test)]
pub const ALL: [Type; 3] = [Type::F32, Type::F16, Type::Bf16];

impl Type {
    /// Returns the size of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// A number in the order of bytes of a vector.
trait Number<const N: usize>: Copy {
    fn new(value: f32) -> Self;
    fn from_bytes(bytes: [u8; N]) -> Self;
    fn to_bytes(self) -> [u8; N];
    fn plus(self, other: Self) -> Self;
}

macro_rules! number {
    ($type:ty, $bytes:literal, $new:expr) => {
        impl Number<$bytes> for $type {
            fn new(value: f32) -> Self {
                $new(value)
            }
            fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self::from_le_bytes(bytes)
            }
            fn to_bytes(self) -> [u8; $bytes] {
                self.to_le_bytes()
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
        }
    };
}

number!(f32, 4, std::convert::identity);
number!(f16, 2, f16::from_f32);
number!(bf16, 2, bf16::from_f32);

/// Returns an element of the vector of a rank: a multiple of 1/8, at most 250. The sums of `f32` are
/// exact in any order. Sums of the other types are rounded, and depend on it.
fn element(rank: usize, iteration: usize, place: usize) -> f32 {
    let mixed = (place as u32)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(rank as u32 * 977 + iteration as u32 * 131)
        >> 16;
    (mixed % 4001) as f32 / 8.0 - 250.0
}

fn vector_of<T: Number<N>, const N: usize>(rank: usize, iteration: usize, count: usize) -> Vec<u8> {
    let numbers = (0..count).map(|place| T::new(element(rank, iteration, place)));
    numbers.flat_map(T::to_bytes).collect()
}

/// Returns the vector of a rank, as bytes.
pub fn vector(numbers: Type, rank: usize, iteration: usize, count: usize) -> Vec<u8> {
    match numbers {
        Type::F32 => vector_of::<f32, 4>(rank, iteration, count),
        Type::F16 => vector_of::<f16, 2>(rank, iteration, count),
        Type::Bf16 => vector_of::<bf16, 2>(rank, iteration, count),
    }
}

fn add_of<T: Number<N>, const N: usize>(ours: &mut [u8], theirs: &[u8]) {
    for (ours, theirs) in ours.chunks_exact_mut(N).zip(theirs.chunks_exact(N)) {
        if let (Ok(a), Ok(b)) = (<[u8; N]>::try_from(&*ours), theirs.try_into()) {
            ours.copy_from_slice(&T::from_bytes(a).plus(T::from_bytes(b)).to_bytes());
        }
    }
}

/// Adds the numbers of `theirs` to those of `ours`.
pub fn add(numbers: Type, ours: &mut [u8], theirs: &[u8]) {
    match numbers {
        Type::F32 => add_of::<f32, 4>(ours, theirs),
        Type::F16 => add_of::<f16, 2>(ours, theirs),
        Type::Bf16 => add_of::<bf16, 2>(ours, theirs),
    }
}

fn wrong_of<T: Number<N>, const N: usize>(sums: &[u8], ranks: usize, iteration: usize) -> usize {
    let count = sums.len() / N;
    let is_wrong = |first: usize, place: usize, sum: &[u8]| {
        let number = |rank: usize| T::new(element(rank % ranks, iteration, place));
        let want = (first + 1..first + ranks).map(number);
        sum != want.fold(number(first), T::plus).to_bytes()
    };
    (0..ranks)
        .flat_map(|first| places(first, ranks, count).map(move |place| (first, place)))
        .zip(sums.chunks_exact(N))
        .filter(|((first, place), sum)| is_wrong(*first, *place, sum))
        .count()
}

/// Returns the number of sums that differ from those of addition in the order of the ring: those of
/// chunk `n` begin with rank `n`.
pub fn wrong(numbers: Type, sums: &[u8], ranks: usize, iteration: usize) -> usize {
    match numbers {
        Type::F32 => wrong_of::<f32, 4>(sums, ranks, iteration),
        Type::F16 => wrong_of::<f16, 2>(sums, ranks, iteration),
        Type::Bf16 => wrong_of::<bf16, 2>(sums, ranks, iteration),
    }
}

/// Returns the places of the numbers of a chunk.
fn places(chunk: usize, ranks: usize, count: usize) -> Range<usize> {
    chunk * count / ranks..(chunk + 1) * count / ranks
}

/// Returns the bytes of a chunk.
pub fn chunk(chunk: usize, ranks: usize, count: usize, numbers: Type) -> Range<usize> {
    let places = places(chunk, ranks, count);
    places.start * numbers.bytes()..places.end * numbers.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_all_of_it_and_no_place_is_too_small() {
        for numbers in ALL {
            for ranks in 2..=16 {
                for count in [16, 17, 1 << 26] {
                    let mut end = 0;
                    for n in 0..ranks {
                        let bytes = chunk(n, ranks, count, numbers);
                        assert_eq!(bytes.start, end);
                        assert!(bytes.len() <= count.div_ceil(ranks) * numbers.bytes());
                        end = bytes.end;
                    }
                    assert_eq!(end, count * numbers.bytes());
                }
            }
        }
    }

    #[test]
    fn sums_of_f32_are_exact_and_others_depend_on_the_order() {
        let differ = |numbers: Type| {
            let vectors: Vec<_> = (0..3).map(|rank| vector(numbers, rank, 0, 1000)).collect();
            let sum = |order: [usize; 3]| {
                let mut sum = vectors[order[0]].clone();
                order[1..]
                    .iter()
                    .for_each(|rank| add(numbers, &mut sum, &vectors[*rank]));
                sum
            };
            sum([0, 1, 2]) != sum([1, 2, 0])
        };
        assert_eq!(ALL.map(differ), [false, true, true]);
    }

    #[test]
    fn halves_are_rounded_to_even() {
        let mut sum = f16::from_f32(2048.0).to_bytes();
        add(Type::F16, &mut sum, &f16::from_f32(1.0).to_bytes());
        assert_eq!(f16::from_bytes(sum), f16::from_f32(2048.0));
        add(Type::F16, &mut sum, &f16::from_f32(3.0).to_bytes());
        assert_eq!(f16::from_bytes(sum), f16::from_f32(2052.0));
        let mut sum = bf16::from_f32(256.0).to_bytes();
        add(Type::Bf16, &mut sum, &bf16::from_f32(1.0).to_bytes());
        assert_eq!(bf16::from_bytes(sum), bf16::from_f32(256.0));
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0

//! The types of numbers, the vector of each rank, and the sums that are expected.

use clap::ValueEnum;
use std::ops::Range;

/// The type of the numbers of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Type {
    /// IEEE 754, 32 bits
    F32,
    /// The upper half of f32: 8 bits of precision
    Bf16,
}

#[cfg(test)]
pub const ALL: [Type; 2] = [Type::F32, Type::Bf16];

impl Type {
    /// Returns the size of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Returns the number that its bytes in a vector are.
    fn read(self, bytes: &[u8]) -> f32 {
        let bits = bytes
            .iter()
            .rev()
            .fold(0, |bits, byte| (bits << 8) | u32::from(*byte));
        f32::from_bits(bits << (32 - 8 * self.bytes()))
    }

    /// Returns the bytes of a number, rounded to even; the first [`Self::bytes`] of them count.
    fn write(self, number: f32) -> [u8; 4] {
        let bits = number.to_bits();
        match self {
            Self::F32 => bits.to_le_bytes(),
            Self::Bf16 => (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16).to_le_bytes(),
        }
    }

    fn round(self, number: f32) -> f32 {
        self.read(self.write(number).get(..self.bytes()).unwrap_or_default())
    }
}

/// Returns an element of the vector of a rank: a multiple of 1/8, at most 250. The sums of `f32` are
/// exact in any order. Those of `bf16` are rounded, and depend on it.
fn element(rank: usize, iteration: usize, place: usize) -> f32 {
    let mixed = (place as u32)
        .wrapping_mul(2_654_435_761)
        .wrapping_add(rank as u32 * 977 + iteration as u32 * 131)
        >> 16;
    (mixed % 4001) as f32 / 8.0 - 250.0
}

/// Returns the vector of a rank, as bytes.
pub fn vector(numbers: Type, rank: usize, iteration: usize, count: usize) -> Vec<u8> {
    let bytes = (0..count).map(|place| numbers.write(element(rank, iteration, place)));
    bytes
        .flat_map(|bytes| bytes.into_iter().take(numbers.bytes()))
        .collect()
}

/// Adds the numbers of `theirs` to those of `ours`.
pub fn add(numbers: Type, ours: &mut [u8], theirs: &[u8]) {
    let len = numbers.bytes();
    for (ours, theirs) in ours.chunks_exact_mut(len).zip(theirs.chunks_exact(len)) {
        let sum = numbers.write(numbers.read(ours) + numbers.read(theirs));
        ours.iter_mut().zip(sum).for_each(|(to, byte)| *to = byte);
    }
}

/// Returns the number of sums that differ from those of addition in the order of the ring: those of
/// chunk `n` begin with rank `n`.
pub fn wrong(numbers: Type, sums: &[u8], ranks: usize, iteration: usize) -> usize {
    let len = numbers.bytes();
    let is_wrong = |first: usize, place: usize, sum: &[u8]| {
        let number = |rank: usize| numbers.round(element(rank % ranks, iteration, place));
        let want = (first + 1..first + ranks).map(number);
        numbers.read(sum) != want.fold(number(first), |sum, more| numbers.round(sum + more))
    };
    (0..ranks)
        .flat_map(|first| places(first, ranks, sums.len() / len).map(move |place| (first, place)))
        .zip(sums.chunks_exact(len))
        .filter(|((first, place), sum)| is_wrong(*first, *place, sum))
        .count()
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
            for (ranks, count) in [2, 3, 4]
                .into_iter()
                .flat_map(|n| [(n, 16), (n, 17), (n, 1 << 26)])
            {
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
        assert_eq!(ALL.map(differ), [false, true]);
    }

    #[test]
    fn halves_are_rounded_to_even() {
        let sum = |ours: f32, theirs: f32| {
            let mut ours = Type::Bf16.write(ours)[..2].to_vec();
            add(Type::Bf16, &mut ours, &Type::Bf16.write(theirs)[..2]);
            Type::Bf16.read(&ours)
        };
        assert_eq!(
            (sum(256.0, 1.0), sum(258.0, 1.0), sum(-256.0, -3.0)),
            (256.0, 260.0, -260.0)
        );
        assert_eq!(Type::F32.read(&Type::F32.write(-0.1)), -0.1);
    }
}

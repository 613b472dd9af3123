//! All hyperplanes of a projective space as shifts of one.
//!
//! The points of PG(d−1, q) are the vectors of length d over GF(q), up to a factor. Read a vector
//! as a polynomial below degree d and multiply by x, over and over, reducing by a polynomial of
//! degree d: with the right one the walk visits every point before it comes back (Singer 1938).
//! Number the points in that order. Multiplying by x maps hyperplanes to hyperplanes, so where one
//! of them consists of the points D, the others are D + 1, D + 2, ... around.

use alloc::vec;
use alloc::vec::Vec;

use super::field::{Field, prime_factors};

/// The points of one hyperplane of the space of that order, sorted, point 0 among them. None where
/// there is no such field, or too many points to count.
pub(super) fn difference_set(order: u32, length: usize) -> Option<Vec<u32>> {
    let field = Field::new(order)?;
    let points = count_points(order, length)?;
    let walk = Walk::round(&field, order, length, points);
    let mut point = walk.one();
    let mut set = Vec::new();
    for number in 0..points {
        // The hyperplane where the leading coefficient is zero.
        if point[length - 1] == 0 {
            set.push(number);
        }
        walk.step(&mut point);
    }
    Some(set)
}

/// How many points the space of vectors of that length has: 1 + q + q² + ...
pub(super) fn count_points(order: u32, length: usize) -> Option<u32> {
    (0..length).try_fold(0u32, |sum, _| sum.checked_mul(order)?.checked_add(1))
}

/// Multiplying by x, where x to the power of `tail.len()` is `tail`.
struct Walk<'a> {
    field: &'a Field,
    tail: Vec<u32>,
}

impl<'a> Walk<'a> {
    /// The first walk that visits every point.
    fn round(field: &'a Field, order: u32, length: usize, points: u32) -> Self {
        let divisors: Vec<u32> = prime_factors(points).iter().map(|prime| points / prime).collect();
        (1..u64::MAX)
            .map(|number| Self { field, tail: digits(number, order, length) })
            .find(|walk| walk.returns_first_after(points, &divisors))
            .expect("every finite field has a primitive polynomial of every degree")
    }

    /// Whether the walk from point 0 is back at it after `points` steps, and not after any part.
    fn returns_first_after(&self, points: u32, divisors: &[u32]) -> bool {
        self.tail[0] != 0
            && is_scalar(&self.power(points))
            && divisors.iter().all(|&part| !is_scalar(&self.power(part)))
    }

    fn one(&self) -> Vec<u32> {
        let mut one = vec![0; self.tail.len()];
        one[0] = 1;
        one
    }

    /// Multiplies by x.
    fn step(&self, vector: &mut [u32]) {
        let last = vector.len() - 1;
        let leading = vector[last];
        vector.copy_within(..last, 1);
        vector[0] = 0;
        for (place, &tail) in vector.iter_mut().zip(&self.tail) {
            *place = self.field.add(*place, self.field.mul(leading, tail));
        }
    }

    /// x to the power of `exponent`.
    fn power(&self, exponent: u32) -> Vec<u32> {
        let mut power = self.one();
        for bit in (0..u32::BITS - exponent.leading_zeros()).rev() {
            power = self.product(&power, &power);
            if exponent >> bit & 1 == 1 {
                self.step(&mut power);
            }
        }
        power
    }

    fn product(&self, a: &[u32], b: &[u32]) -> Vec<u32> {
        let mut product = vec![0; a.len()];
        for &factor in a.iter().rev() {
            self.step(&mut product);
            for (place, &other) in product.iter_mut().zip(b) {
                *place = self.field.add(*place, self.field.mul(factor, other));
            }
        }
        product
    }
}

/// Whether the vector is point 0.
fn is_scalar(vector: &[u32]) -> bool {
    vector[0] != 0 && vector[1..].iter().all(|&place| place == 0)
}

fn digits(mut number: u64, base: u32, length: usize) -> Vec<u32> {
    let base = u64::from(base);
    let mut next = || {
        let digit = number % base;
        number /= base;
        u32::try_from(digit).expect("a digit is smaller than its base")
    };
    (0..length).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every difference but zero occurs equally often: what "difference set" means, and more than
    /// the intersection needs.
    #[test]
    fn every_difference_occurs_equally_often() {
        let spaces = [(2, 3), (3, 3), (4, 3), (8, 3), (9, 3), (16, 3), (2, 4), (4, 4), (3, 5)];
        for (order, length) in spaces {
            let set = difference_set(order, length).expect("a prime power");
            let points = count_points(order, length).expect("small");
            let mut seen = vec![0; points as usize];
            for a in &set {
                for b in &set {
                    seen[((a + points - b) % points) as usize] += 1;
                }
            }
            assert_eq!(Some(seen[0]), count_points(order, length - 1), "PG({length}-1,{order})");
            assert!(seen[1..].iter().all(|&times| Some(times) == count_points(order, length - 2)));
        }
    }

    #[test]
    fn the_fano_plane_has_lines_of_three() {
        assert_eq!(difference_set(2, 3).map(|line| line.len()), Some(3));
    }
}

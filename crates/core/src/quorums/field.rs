//! Finite fields GF(q), for every prime power q that a cluster can need.
//!
//! Every element but zero is a power of one generator, so multiplying is adding exponents, and
//! a + b is a·(1 + b/a): a table of what follows each element is enough to add. An element is
//! written as a number below q whose digits to the base p, the prime under q, are the coefficients
//! of a polynomial.

use alloc::vec;
use alloc::vec::Vec;

/// The field with `order` elements, `0..order`.
#[derive(Clone, Debug)]
pub(super) struct Field {
    /// The powers of the generator, from 1.
    powers: Vec<u32>,
    /// The exponent of each element; that of zero means nothing.
    exponents: Vec<u32>,
    /// Each power of the generator, plus one.
    successors: Vec<u32>,
}

impl Field {
    /// The field of that order; none exists unless it is a power of a prime.
    pub(super) fn new(order: u32) -> Option<Self> {
        let prime = prime_under(order)?;
        let powers = (1..order).find_map(|tail| all_powers(order, prime, tail))?;
        let mut exponents = vec![0; powers.len() + 1];
        for (exponent, &power) in (0..).zip(&powers) {
            exponents[power as usize] = exponent;
        }
        let successors = powers.iter().map(|&power| add_digits(power, 1, prime)).collect();
        Some(Self { powers, exponents, successors })
    }

    pub(super) fn add(&self, a: u32, b: u32) -> u32 {
        if a == 0 || b == 0 {
            return a + b;
        }
        let (a_exponent, b_exponent) = (self.exponent(a), self.exponent(b));
        let ratio = if b_exponent >= a_exponent {
            b_exponent - a_exponent
        } else {
            b_exponent + self.powers.len() - a_exponent
        };
        self.mul(a, self.successors[ratio])
    }

    pub(super) fn mul(&self, a: u32, b: u32) -> u32 {
        if a == 0 || b == 0 {
            return 0;
        }
        let exponent = self.exponent(a) + self.exponent(b);
        // Cheaper than a division, and this is where the time goes.
        let round = if exponent >= self.powers.len() { self.powers.len() } else { 0 };
        self.powers[exponent - round]
    }

    fn exponent(&self, element: u32) -> usize {
        self.exponents[element as usize] as usize
    }
}

/// Whether a field of that order exists.
pub(super) fn is_prime_power(order: u32) -> bool {
    prime_under(order).is_some()
}

/// The primes that divide `n`, each once.
pub(super) fn prime_factors(mut n: u32) -> Vec<u32> {
    let mut factors = Vec::new();
    let mut divisor = 2;
    while divisor * divisor <= n {
        if n.is_multiple_of(divisor) {
            factors.push(divisor);
            while n.is_multiple_of(divisor) {
                n /= divisor;
            }
        }
        divisor += 1;
    }
    if n > 1 {
        factors.push(n);
    }
    factors
}

/// The prime whose power `order` is.
fn prime_under(order: u32) -> Option<u32> {
    match prime_factors(order)[..] {
        [prime] => Some(prime),
        _ => None,
    }
}

/// The powers of x among the polynomials over GF(p) where the e-th power of x is `tail`, if they
/// are all elements but zero. Then each of those has an inverse, and the ring is a field.
fn all_powers(order: u32, prime: u32, tail: u32) -> Option<Vec<u32>> {
    let top = order / prime;
    let mut powers = vec![1];
    let mut power = tail_step(1, top, prime, tail);
    while power != 1 {
        // Zero never comes back to one, and neither does a cycle that one is not on.
        if power == 0 || powers.len() >= order as usize {
            return None;
        }
        powers.push(power);
        power = tail_step(power, top, prime, tail);
    }
    (powers.len() + 1 == order as usize).then_some(powers)
}

/// `element` times x. `top` is the place value of the leading digit.
fn tail_step(element: u32, top: u32, prime: u32, tail: u32) -> u32 {
    let (leading, rest) = (element / top, element % top);
    add_digits(rest * prime, scale_digits(tail, leading, prime), prime)
}

fn add_digits(a: u32, b: u32, prime: u32) -> u32 {
    if prime == 2 {
        return a ^ b;
    }
    map_digits(a, b, prime, |x, y| x + y)
}

fn scale_digits(a: u32, factor: u32, prime: u32) -> u32 {
    map_digits(a, 0, prime, |x, _| x * factor)
}

fn map_digits(mut a: u32, mut b: u32, prime: u32, each: impl Fn(u32, u32) -> u32) -> u32 {
    let (mut sum, mut place) = (0, 1);
    while a > 0 || b > 0 {
        sum += each(a % prime, b % prime) % prime * place;
        place *= prime;
        a /= prime;
        b /= prime;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orders_of_fields_are_the_prime_powers() {
        let orders: Vec<u32> = (0..33).filter(|&order| is_prime_power(order)).collect();
        assert_eq!(orders, [2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 19, 23, 25, 27, 29, 31, 32]);
    }

    #[test]
    fn the_laws_of_a_field_hold() {
        for order in [2, 3, 4, 5, 7, 8, 9, 16, 25, 27] {
            let field = Field::new(order).expect("a prime power");
            for a in 0..order {
                let inverses = (0..order).filter(|&b| field.mul(a, b) == 1).count();
                assert_eq!(inverses, usize::from(a != 0), "{a} in GF({order})");
                assert_eq!((0..order).filter(|&b| field.add(a, b) == 0).count(), 1);
                for b in 0..order {
                    for c in 0..order {
                        let apart = field.add(field.mul(a, b), field.mul(a, c));
                        assert_eq!(field.mul(a, field.add(b, c)), apart, "GF({order})");
                    }
                }
            }
        }
    }
}

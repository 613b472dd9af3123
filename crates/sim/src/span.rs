//! Random durations as users write them.

use std::fmt;
use std::str::FromStr;

use crate::rng::Rng;

/// Virtual time: millionths of the mean link delay.
pub type Time = u64;

/// One mean link delay.
pub const DELAY: Time = 1_000_000;

/// A duration to draw, in link delays: `X` constant, `A..B` uniform, `~X` exponential.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// Always the same.
    Constant(f64),
    /// Anything between the two, equally likely.
    Uniform(f64, f64),
    /// Exponential with this mean.
    Exponential(f64),
}

impl Span {
    /// Draws one.
    pub fn draw(self, rng: &mut Rng) -> Time {
        let delays = match self {
            Self::Constant(x) => x,
            Self::Uniform(a, b) => a + (b - a) * rng.unit(),
            Self::Exponential(mean) => -mean * libm::log(rng.unit()),
        };
        ticks(delays)
    }

    /// The same shape, `factor` times as long.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Constant(x) => Self::Constant(x * factor),
            Self::Uniform(a, b) => Self::Uniform(a * factor, b * factor),
            Self::Exponential(mean) => Self::Exponential(mean * factor),
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "parsed as 0..=1e9")]
fn ticks(delays: f64) -> Time {
    libm::round(delays * DELAY as f64) as Time
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = if let Some(mean) = text.strip_prefix('~') {
            Self::Exponential(number(mean, text)?)
        } else if let Some((a, b)) = text.split_once("..") {
            Self::Uniform(number(a, text)?, number(b, text)?)
        } else {
            Self::Constant(number(text, text)?)
        };
        if matches!(span, Self::Uniform(a, b) if a > b) {
            return Err(format!("`{text}` ends before it begins"));
        }
        Ok(span)
    }
}

fn number(part: &str, whole: &str) -> Result<f64, String> {
    let wrong = || {
        format!("`{whole}` is not a time: write X, A..B or ~X, numbers from 0 to 1e9 (link delays)")
    };
    let plain = part.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let x: f64 = part.parse().ok().filter(|_| plain).ok_or_else(wrong)?;
    if (0.0..=1e9).contains(&x) { Ok(x) } else { Err(wrong()) }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(x) => write!(f, "{x}"),
            Self::Uniform(a, b) => write!(f, "{a}..{b}"),
            Self::Exponential(mean) => write!(f, "~{mean}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        for text in ["0", "2.5", "0.5..1.5", "~30"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["", "x", "-1", "2..1", "~", "~-3", "1..", "inf", "nan", "1e99", "+1"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_mean_of_an_exponential_is_its_mean() {
        let mut rng = Rng::new(3);
        let total: Time = (0..100_000).map(|_| Span::Exponential(10.0).draw(&mut rng)).sum();
        assert!((9_900_000..10_100_000).contains(&(total / 100_000)), "{total}");
    }
}

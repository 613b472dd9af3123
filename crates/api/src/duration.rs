//! Durations as people write them: `500ms`, `30s`, `5m`, `2h`, `1d`.

use std::time::Duration;

/// Reads a duration; a bare `0` is zero.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` must be a number with a unit: 500ms, 30s, 5m or 2h");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}

/// Writes a duration the same way.
pub fn show(time: Duration) -> String {
    let ms = time.as_millis();
    match ms {
        0 => "0".to_owned(),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms) in [("0", 0), ("500ms", 500), ("30s", 30_000), ("5m", 300_000)] {
            let time = Duration::from_millis(ms);
            assert_eq!(parse(text), Ok(time));
            assert_eq!(show(time), text);
        }
        assert_eq!(parse("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "s", "5", "-1s", "5 s", "5x", "1e400s", "NaNs", "infs", "ä"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

//! Times as people write them: how long ago, or a date in UTC.

use crate::duration;

/// Reads `30d`, `2026-01-31` or `2026-01-31T12:00:00Z`, in milliseconds of Unix time.
pub fn parse(text: &str, now_ms: u64) -> Result<u64, String> {
    if let Ok(ago) = duration::parse(text) {
        return Ok(now_ms.saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)));
    }
    date(text).ok_or_else(|| {
        format!(
            "`{text}` must be a duration, as 30d, or a date, as 2026-01-31 or 2026-01-31T12:00:00Z"
        )
    })
}

/// `2026-01-31` or `2026-01-31T12:00:00Z`, in milliseconds of Unix time.
fn date(text: &str) -> Option<u64> {
    let (day, time) = text.split_once('T').map_or((text, None), |(day, time)| (day, Some(time)));
    let parts = |text: &str, mark: char| -> Option<[u64; 3]> {
        let list: Option<Vec<u64>> = text
            .split(mark)
            .map(|part| part.parse().ok().filter(|_| part.bytes().all(|it| it.is_ascii_digit())))
            .collect();
        list?.try_into().ok()
    };
    let [year, month, day] = parts(day, '-')?;
    let [hour, minute, second] = match time {
        Some(time) => parts(time.strip_suffix('Z')?, ':')?,
        None => [0; 3],
    };
    let good = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !good {
        return None;
    }
    // Days since 1970-01-01, counting years from March: "days_from_civil" by Howard Hinnant.
    let (shifted, place) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let in_year = (153 * place + 2) / 5 + day - 1;
    let days = shifted * 365 + shifted / 4 - shifted / 100 + shifted / 400 + in_year;
    let days = days.checked_sub(719_468)?;
    Some((days * 86_400 + hour * 3600 + minute * 60 + second) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(date("1970-01-01"), Some(0));
        assert_eq!(date("2000-02-29T01:02:03Z"), Some(951_786_123_000));
        assert_eq!(date("2026-11-18"), Some(1_794_960_000_000));
        assert_eq!(parse("1h", 4_000_000), Ok(400_000));
        assert_eq!(parse("30d", 4_000_000), Ok(0));
        for wrong in ["", "x", "2026", "2026-13-01", "2026-01-32", "2026-1-+1", "1969-12-31"] {
            assert!(parse(wrong, 0).is_err(), "{wrong}");
        }
        for wrong in ["2026-01-01T", "2026-01-01T1:2", "2026-01-01T25:00:00Z", "2026-01-01T1:2:3"] {
            assert!(parse(wrong, 0).is_err(), "{wrong}");
        }
    }
}

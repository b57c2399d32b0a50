//! Rates of request limits: a count per window, `20/m`, `5/15m`, `2k/s`.

use std::time::Duration;

use super::limit::MAX_COUNT;

const HELP: &str = "write a count per window, as in `20/m`, `5/15m` or `2k/s`";

/// Count and window of a rate; the error says what to write.
pub fn parse_rate(text: &str) -> Result<(u32, Duration), String> {
    let (count, window) = text.split_once('/').ok_or_else(|| format!("`{text}` is no rate; {HELP}"))?;
    let count = parse_count(count.trim())
        .ok_or_else(|| format!("`{}` is no count up to 1G; {HELP}", count.trim()))?;
    let window = window.trim();
    let window = parse_window(window).ok_or_else(|| format!("`{window}` is no window; {HELP}"))?;
    Ok((count, window))
}

/// `20`, `2k`, `1.5M`: a whole number in the end.
pub fn parse_count(text: &str) -> Option<u32> {
    let (number, factor) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1_u64),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 || number.ends_with('.')
    {
        return None;
    }
    let digits = format!("{whole}{fraction}").replace('_', "");
    let scaled = digits.parse::<u64>().ok()?.checked_mul(factor)?;
    let divisor = 10_u64.pow(u32::try_from(fraction.len()).ok()?);
    let count = scaled.is_multiple_of(divisor).then_some(scaled / divisor)?;
    u32::try_from(count).ok().filter(|count| *count <= MAX_COUNT)
}

/// `s`, `m`, `h`, `d`, and these with a whole number before them.
fn parse_window(text: &str) -> Option<Duration> {
    let (number, seconds) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1),
        b'm' => (&text[..text.len() - 1], 60),
        b'h' => (&text[..text.len() - 1], 3600),
        b'd' => (&text[..text.len() - 1], 86_400),
        _ => return None,
    };
    if number.is_empty() {
        return Some(Duration::from_secs(seconds));
    }
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number = number.parse::<u64>().ok().filter(|number| *number > 0)?;
    number.checked_mul(seconds).map(Duration::from_secs)
}

/// A window as it is written: `m`, `15m`, `90s`.
pub fn window_text(window: Duration) -> String {
    let seconds = window.as_secs();
    let (number, unit) = match seconds {
        0 => (seconds, "s"),
        _ if seconds.is_multiple_of(86_400) => (seconds / 86_400, "d"),
        _ if seconds.is_multiple_of(3600) => (seconds / 3600, "h"),
        _ if seconds.is_multiple_of(60) => (seconds / 60, "m"),
        _ => (seconds, "s"),
    };
    if number == 1 { unit.to_owned() } else { format!("{number}{unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_counts_per_window() {
        let table: &[(&str, Option<(u32, u64)>)] = &[
            ("20/m", Some((20, 60))),
            ("5/15m", Some((5, 900))),
            ("2k/s", Some((2000, 1))),
            ("1.5k/h", Some((1500, 3600))),
            ("1M/1d", Some((1_000_000, 86_400))),
            ("0/m", Some((0, 60))),
            ("1G/s", Some((1_000_000_000, 1))),
            ("600 / m", Some((600, 60))),
            ("2G/s", None),
            ("1.5/s", None),
            ("20", None),
            ("/m", None),
            ("20/", None),
            ("20/0m", None),
            ("20/fortnight", None),
            ("-1/s", None),
            ("+1/s", None),
            ("1e3/s", None),
            ("20/+5m", None),
            ("5 Mbit/s", None),
        ];
        for (text, expected) in table {
            let read = parse_rate(text).ok().map(|(count, window)| (count, window.as_secs()));
            assert_eq!(read, *expected, "{text}");
        }
    }

    #[test]
    fn windows_read_as_written() {
        for (seconds, text) in [(1, "s"), (60, "m"), (900, "15m"), (3600, "h"), (172_800, "2d"), (90, "90s")]
        {
            assert_eq!(window_text(Duration::from_secs(seconds)), text);
        }
    }
}

//! Moments as TOML writes them: `2026-12-24T06:00:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use toml::value::{Datetime, Offset};

/// The moment a date with time and zone means; `None` when one of them is missing, or it is before 1970.
pub(super) fn moment(written: &Datetime) -> Option<SystemTime> {
    let (date, time, offset) = (written.date?, written.time?, written.offset?);
    let days = days_since_1970(i64::from(date.year), i64::from(date.month), i64::from(date.day));
    let of_day =
        i64::from(time.hour) * 3600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
    let east = match offset {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes) * 60,
    };
    let seconds = u64::try_from(days * 86_400 + of_day - east).ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Days of the proleptic Gregorian calendar: Howard Hinnant, "chrono-compatible low-level date algorithms".
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is their last.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        // By `date -u -d … +%s`.
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-12-24T06:00:00Z", 1_798_092_000),
            ("2024-02-29T23:59:59Z", 1_709_251_199),
            ("2026-12-24T06:00:00+02:00", 1_798_084_800),
            ("2000-03-01T00:00:00-05:30", 951_888_600),
        ] {
            let expected = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(moment(&text.parse().unwrap()), Some(expected), "{text}");
        }
        for text in ["2026-12-24", "2026-12-24T06:00:00", "06:00:00", "1969-01-01T00:00:00Z"] {
            assert_eq!(moment(&text.parse().unwrap()), None, "{text}");
        }
    }
}

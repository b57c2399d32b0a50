//! The script's reply: `allowed, unreadable, clock`, then per limit `allowed, remaining, retry, reset, delay`,
//! times in microseconds, a retry of −1 for never.

use std::time::Duration;

use crate::requests::store::{Answer, LimitAnswer, StoreError};

const HEAD: usize = 3;
const PER_LIMIT: usize = 5;

pub(super) struct Reply {
    pub answer: Answer,
    /// States that counted as empty because of their type or form.
    pub unreadable: u64,
    /// The server's clock in microseconds.
    pub micros: u64,
}

pub(super) fn parse(numbers: &[i64], limits: usize) -> Result<Reply, StoreError> {
    let malformed = || StoreError::Malformed(format!("{numbers:?} for {limits} limits"));
    let number = |item: i64| u64::try_from(item).map_err(|_| malformed());
    let (&[allowed, unreadable, micros], rest) = numbers.split_first_chunk::<HEAD>().ok_or_else(malformed)?;
    let (groups, []) = rest.as_chunks::<PER_LIMIT>() else { return Err(malformed()) };
    if groups.len() != limits {
        return Err(malformed());
    }
    let one = |&[allowed, remaining, retry, reset, delay]: &[i64; PER_LIMIT]| {
        Ok(LimitAnswer {
            allowed: allowed == 1,
            remaining: u32::try_from(remaining).map_err(|_| malformed())?,
            retry_after: if retry < 0 { None } else { Some(Duration::from_micros(number(retry)?)) },
            reset: Duration::from_micros(number(reset)?),
            delay: Duration::from_micros(number(delay)?),
        })
    };
    Ok(Reply {
        answer: Answer { allowed: allowed == 1, limits: groups.iter().map(one).collect::<Result<_, _>>()? },
        unreadable: number(unreadable)?,
        micros: number(micros)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_whole_or_not_at_all() {
        let reply = parse(&[0, 1, 99, 1, 7, 0, 5, 0, 0, 0, -1, 3, 0], 2).ok().unwrap();
        assert!(!reply.answer.allowed);
        assert_eq!((reply.unreadable, reply.micros), (1, 99));
        assert_eq!(reply.answer.limits[0].remaining, 7);
        assert_eq!(reply.answer.limits[1].retry_after, None);
        for wrong in [&[][..], &[1, 0, 9][..], &[1, 0, 9, 1, 0, 0, 0][..], &[1, 0, 9, 1, -2, 0, 0, 0][..]] {
            assert!(parse(wrong, 1).is_err(), "{wrong:?}");
        }
    }
}

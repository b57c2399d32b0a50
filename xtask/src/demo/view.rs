//! The table that lives while the traffic runs, and the sentence at the end. 80 columns; colour and redrawing on
//! a terminal only.

use std::time::Duration;

use anyhow::{Result, bail};

use super::traffic::{Sum, Traffic};
use super::world::{RuleLine, SourceLine};

pub struct View {
    redraw: bool,
    colour: bool,
    drawn: usize,
}

impl View {
    pub fn new(terminal: bool) -> View {
        let colour = terminal && std::env::var_os("NO_COLOR").is_none();
        View { redraw: terminal, colour, drawn: 0 }
    }

    pub fn show(
        &mut self,
        elapsed: Duration,
        traffic: &Traffic,
        sources: &[SourceLine],
        rules: &[(String, RuleLine)],
    ) {
        let lines = self.lines(elapsed, &traffic.sums(), sources, rules);
        if self.redraw && self.drawn > 0 {
            print!("\x1b[{}A\x1b[J", self.drawn);
        }
        self.drawn = lines.len();
        for line in lines {
            println!("{line}");
        }
    }

    fn lines(
        &self,
        elapsed: Duration,
        sums: &[Sum],
        sources: &[SourceLine],
        rules: &[(String, RuleLine)],
    ) -> Vec<String> {
        let mut lines = vec![
            format!(
                "after {:>4.1} s {:>38} {:>20}",
                elapsed.as_secs_f64(),
                "at the sockets",
                "limiterctl top"
            ),
            format!(
                "{:<18} {:<7} {:<4} {:>9} {:>9} {:>9} {:>10}",
                "source", "manner", "rule", "sent", "arrived", "passed", "dropped ≈"
            ),
        ];
        for Sum { flow, arrived } in sums {
            let key = flow.key();
            let said = sources.iter().find(|line| same(&line.source, &key) && line.rule == flow.rule);
            let told = match said {
                Some(line) if line.dropped > 0 => {
                    format!(
                        "{:>9} {}",
                        grouped(line.passed),
                        self.red(&format!("{:>10}", grouped(line.dropped)))
                    )
                }
                Some(line) => format!("{:>9} {:>10}", grouped(line.passed), 0),
                None => format!("{:>20}", "bucket full"),
            };
            lines.push(format!(
                "{key:<18} {:<7} {:<4} {:>9} {:>9} {told}",
                flow.manner,
                flow.rule,
                grouped(flow.sent()),
                grouped(*arrived)
            ));
        }
        for (rule, line) in rules {
            lines.push(format!(
                "{:<18} {:<7} {rule:<4} {:>29} {:>10}",
                "limiterctl stats",
                "exactly",
                grouped(line.passed),
                grouped(line.dropped)
            ));
        }
        lines.push(String::new());
        lines
    }

    fn red(&self, text: &str) -> String {
        if self.colour { format!("\x1b[31m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// `198.51.100.66` and `198.51.100.66/32` are one source.
fn same(shown: &str, key: &str) -> bool {
    shown == key || shown.strip_suffix("/32") == Some(key)
}

/// Says what happened, and fails when it is not what limiter promises.
pub fn verdict(took: Duration, sums: &[Sum]) -> Result<()> {
    let total = |manner: &str| {
        let of = sums.iter().filter(|sum| sum.flow.manner == manner);
        of.fold((0, 0), |(sent, arrived), sum| (sent + sum.flow.sent(), arrived + sum.arrived))
    };
    let (flooded, leaked) = total("flood");
    let (asked, served) = total("polite");
    if served < asked {
        bail!(
            "{} of {} polite packets were lost, and none should be",
            grouped(asked - served),
            grouped(asked)
        );
    }
    for sum in sums {
        let allowed = allowed(sum, took);
        if sum.arrived > allowed {
            let (key, rule) = (sum.flow.key(), sum.flow.rule);
            bail!("{key} got {} packets through rule {rule}, which allows {allowed}", sum.arrived);
        }
    }
    println!(
        "In {:.0} seconds the abusive source sent {} packets and got {} through, no more than its limits\n\
         allow, while all {} packets of the two polite sources arrived, over IPv4 and IPv6.",
        took.as_secs_f64(),
        grouped(flooded),
        grouped(leaked),
        grouped(served)
    );
    Ok(())
}

/// Burst and refill of the demo's policy, in packets, and a tenth of a second for what was under way at the end.
fn allowed(sum: &Sum, took: Duration) -> u64 {
    let seconds = took.as_secs_f64() + 0.1;
    let packets = match sum.flow.rule {
        "dns" => 100.0 + 100.0 * seconds,
        // 50 kB at 600 bytes of payload, 8 of UDP header and at least 20 of IP header; 400 kbit are 50 kB.
        _ => (50_000.0 + 50_000.0 * seconds) / 628.0,
    };
    packets.ceil() as u64
}

/// 1234567 as `1 234 567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{View, grouped, same};
    use crate::demo::traffic::{Family, Flow, Sum};
    use crate::demo::world::{RuleLine, SourceLine};
    use std::time::Duration;

    #[test]
    fn numbers_are_grouped_by_three() {
        let cases = [(0, "0"), (999, "999"), (1000, "1 000"), (1_234_567, "1 234 567")];
        for (number, expected) in cases {
            assert_eq!(grouped(number), expected);
        }
    }

    #[test]
    fn the_table_fits_eighty_columns_and_piped_has_no_colour() {
        let view = View::new(false);
        let flow = Flow::new("polite", Family::Ipv6, 66, "dns", 53, 1, 1);
        let source = SourceLine { source: flow.key(), rule: "dns", passed: 9_999_999, dropped: 99_999_999 };
        let sums = [Sum { flow, arrived: 9_999_999 }];
        let rules = [("dns".to_owned(), RuleLine { passed: 99_999_999, dropped: 99_999_999 })];
        let lines = view.lines(Duration::from_secs(10), &sums, &[source], &rules);
        assert!(lines.iter().any(|line| line.contains("99 999 999")), "{lines:?}");
        for line in lines {
            assert!(line.chars().count() <= 80 && !line.contains('\x1b'), "{line}");
        }
    }

    #[test]
    fn a_source_is_recognised_with_its_width() {
        assert!(same("198.51.100.66/32", "198.51.100.66"));
        assert!(!same("198.51.100.6", "198.51.100.66"));
    }
}

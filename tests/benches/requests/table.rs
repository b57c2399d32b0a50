//! Figures of rounds, and how they are shown.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result};

/// One contender's figures, a number per round.
#[derive(Debug, Default)]
struct Row {
    rates: Vec<f64>,
    /// Per round: the median and the 99th percentile of the time to an answer, in microseconds.
    times: Vec<(f64, f64)>,
}

/// Rows by group and contender, in the order in which they came.
#[derive(Debug, Default)]
pub struct Table {
    order: Vec<(String, String)>,
    rows: BTreeMap<(String, String), Row>,
    /// What a group is compared with.
    controls: BTreeMap<String, String>,
}

impl Table {
    /// Says which contender of a group is its control.
    pub fn control(&mut self, group: &str, name: &str) {
        self.controls.insert(group.to_owned(), name.to_owned());
    }

    pub fn add(&mut self, group: &str, name: &str, per_second: f64, times: Option<(f64, f64)>) {
        let key = (group.to_owned(), name.to_owned());
        if !self.rows.contains_key(&key) {
            self.order.push(key.clone());
        }
        let row = self.rows.entry(key).or_default();
        row.rates.push(per_second);
        row.times.extend(times);
    }

    pub fn text(&self) -> Result<String> {
        let mut text = String::from(
            "| measured | contender | per second: median (min–max) | p50 µs | p99 µs | ratio to control: median (min–max) |\n\
             |---|---|---|---|---|---|\n",
        );
        for (group, name) in &self.order {
            let row = self.rows.get(&(group.clone(), name.clone())).context("a row without figures")?;
            let control = self.controls.get(group).filter(|control| *control != name);
            let ratios =
                control.and_then(|control| self.rows.get(&(group.clone(), control.clone()))).map(|control| {
                    row.rates.iter().zip(&control.rates).map(|(rate, base)| rate / base).collect::<Vec<_>>()
                });
            let (p50, p99): (Vec<f64>, Vec<f64>) = row.times.iter().copied().unzip();
            let time =
                |times: &[f64]| spread(times).map_or("–".into(), |(_, median, _)| format!("{median:.0}"));
            let rate = spread(&row.rates)
                .map_or("–".into(), |(min, median, max)| format!("{median:.0} ({min:.0}–{max:.0})"));
            let ratio = ratios
                .as_deref()
                .and_then(spread)
                .map_or("–".into(), |(min, median, max)| format!("{median:.2} ({min:.2}–{max:.2})"));
            writeln!(text, "| {group} | {name} | {rate} | {} | {} | {ratio} |", time(&p50), time(&p99))?;
        }
        Ok(text)
    }
}

/// Minimum, median and maximum.
fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some((*sorted.first()?, *sorted.get(sorted.len() / 2)?, *sorted.last()?))
}

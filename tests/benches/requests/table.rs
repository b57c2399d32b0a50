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
    /// Per round: the microseconds of processor time an answer took.
    work: Vec<f64>,
}

/// What one contender did in one round.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    pub per_second: f64,
    /// The median and the 99th percentile of the time to an answer, in microseconds.
    pub times: Option<(f64, f64)>,
    /// Microseconds of processor time an answer took, where the server's alone can be told.
    pub work: Option<f64>,
}

impl Figures {
    pub fn rate(per_second: f64) -> Self {
        Self { per_second, times: None, work: None }
    }
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

    pub fn add(&mut self, group: &str, name: &str, figures: Figures) {
        let key = (group.to_owned(), name.to_owned());
        if !self.rows.contains_key(&key) {
            self.order.push(key.clone());
        }
        let row = self.rows.entry(key).or_default();
        row.rates.push(figures.per_second);
        row.times.extend(figures.times);
        row.work.extend(figures.work);
    }

    pub fn text(&self) -> Result<String> {
        let mut text = String::from(
            "| measured | contender | per second: median (min–max) | p50 µs | p99 µs | CPU µs | ratio to control: median (min–max) | by CPU |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for (group, name) in &self.order {
            let row = self.rows.get(&(group.clone(), name.clone())).context("a row without figures")?;
            let control = self.controls.get(group).filter(|control| *control != name);
            let control = control.and_then(|control| self.rows.get(&(group.clone(), control.clone())));
            let ratios = |own: &[f64], base: Option<&[f64]>| -> Vec<f64> {
                own.iter().zip(base.unwrap_or_default()).map(|(own, base)| own / base).collect()
            };
            let by_rate = ratios(&row.rates, control.map(|control| &*control.rates));
            let by_work = control.map(|control| ratios(&control.work, Some(&row.work))).unwrap_or_default();
            let (p50, p99): (Vec<f64>, Vec<f64>) = row.times.iter().copied().unzip();
            let time =
                |times: &[f64]| spread(times).map_or("–".into(), |(_, median, _)| format!("{median:.0}"));
            let rate = spread(&row.rates)
                .map_or("–".into(), |(min, median, max)| format!("{median:.0} ({min:.0}–{max:.0})"));
            let ratio = |values: &[f64]| {
                spread(values)
                    .map_or("–".into(), |(min, median, max)| format!("{median:.2} ({min:.2}–{max:.2})"))
            };
            let work = spread(&row.work).map_or("–".into(), |(_, median, _)| format!("{median:.1}"));
            writeln!(
                text,
                "| {group} | {name} | {rate} | {} | {} | {work} | {} | {} |",
                time(&p50),
                time(&p99),
                ratio(&by_rate),
                ratio(&by_work)
            )?;
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

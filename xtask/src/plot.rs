//! Plots of what the benches print: for every column of spreads in a section's table a panel of bars, as SVG.

use std::fmt::Write as _;

/// Minimum, median and maximum, as the benches write them: `1.2 · **3.4** · 5.6`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn parse(cell: &str) -> Option<Self> {
        let mut parts = cell.split('·').map(|part| part.trim().trim_matches('*').parse::<f64>().ok());
        let (least, median, most) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(Self { least, median, most })
    }
}

/// One column of a table: its name, and a bar for every row that has a spread there.
#[derive(Debug, PartialEq)]
struct Panel {
    name: String,
    bars: Vec<(String, Spread)>,
}

/// Puts a plot behind every table of spreads in a bench's text. Gives the text, and by name each plot.
pub fn illustrate(bench: &str, text: &str) -> (String, Vec<(String, String)>) {
    let mut sections = text.split("\n### ");
    let mut out = sections.next().unwrap_or_default().to_owned();
    let mut plots = Vec::new();
    for section in sections {
        let heading = section.lines().next().unwrap_or_default();
        let _ = write!(out, "\n### {}", section.trim_end());
        let panels = panels(section);
        if !panels.is_empty() {
            let name = format!("{bench}-{}.svg", slug(heading));
            let _ = write!(out, "\n\n![{heading}](plots/{name})");
            plots.push((name, draw(heading, &panels)));
        }
        out.push('\n');
    }
    (out, plots)
}

fn slug(heading: &str) -> String {
    let letters = heading.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' });
    letters.collect::<String>().to_ascii_lowercase().trim_matches('-').to_owned()
}

fn panels(section: &str) -> Vec<Panel> {
    let mut rows = section.lines().filter(|line| line.starts_with('|')).map(|line| {
        let inner = line.trim().trim_matches('|');
        inner.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    });
    let names = rows.next().unwrap_or_default();
    let mut panels: Vec<Panel> =
        names.iter().map(|name| Panel { name: name.clone(), bars: Vec::new() }).collect();
    for row in rows.skip(1) {
        // What stands before the first number names the row.
        let words = row.iter().take_while(|cell| Spread::parse(cell).is_none());
        let label = words.filter(|cell| !cell.is_empty()).cloned().collect::<Vec<_>>().join(", ");
        for (panel, cell) in panels.iter_mut().zip(&row) {
            panel.bars.extend(Spread::parse(cell).map(|spread| (label.clone(), spread)));
        }
    }
    panels.retain(|panel| !panel.bars.is_empty());
    panels
}

const WIDTH: f64 = 860.0;
/// Room for the names of rows.
const MARGIN: f64 = 330.0;
const BAR: f64 = 16.0;
const STEP: f64 = 24.0;

fn draw(heading: &str, panels: &[Panel]) -> String {
    let lines: usize = panels.iter().map(|panel| panel.bars.len() + 2).sum();
    let height = STEP * lines as f64 + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        escape(heading)
    );
    let mut y = 40.0;
    for panel in panels {
        let longest = panel.bars.iter().map(|(_, spread)| spread.most).fold(f64::MIN_POSITIVE, f64::max);
        let scale = (WIDTH - MARGIN - 90.0) / longest;
        let x = |value: f64| MARGIN + value.max(0.0) * scale;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{}\" font-weight=\"bold\">{}</text>",
            y + 16.0,
            escape(&panel.name)
        );
        y += STEP;
        for (label, Spread { least, median, most }) in &panel.bars {
            let middle = y + BAR / 2.0;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
                 <rect x=\"{MARGIN}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"#4a7fb5\"/>\n\
                 <path d=\"M{:.1} {middle}H{:.1}\" stroke=\"black\" stroke-width=\"1.5\"/>\n\
                 <text x=\"{:.1}\" y=\"{}\">{median}</text>",
                MARGIN - 8.0,
                middle + 4.0,
                escape(label),
                x(*median) - MARGIN,
                x(*least),
                x(*most),
                x(*most) + 6.0,
                middle + 4.0,
            );
            y += STEP;
        }
        y += STEP;
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "A machine.\n\n### Over veth\n\nWhat it is.\n\n| sources | cores | Mpps | ratio (asked: ≥ 3) |\n|---|---|---|---|\n\
                        | one | 1 | 5.3 · **5.4** · 5.5 | 3.0 · **3.1** · 3.2 |\n| 2^16 | 1 |  | 2.4 · **2.6** · 2.8 |\n\n\
                        ### Nothing to draw\n\n| a | b |\n|---|---|\n| x | 7 |\n";

    #[test]
    fn a_table_of_spreads_has_a_panel_a_column_and_a_bar_a_row() {
        let found = panels(TEXT.split("\n### ").nth(1).unwrap());
        let spread = |least, median, most| Spread { least, median, most };
        assert_eq!(
            found,
            [
                Panel { name: "Mpps".to_owned(), bars: vec![("one, 1".to_owned(), spread(5.3, 5.4, 5.5))] },
                Panel {
                    name: "ratio (asked: ≥ 3)".to_owned(),
                    bars: vec![
                        ("one, 1".to_owned(), spread(3.0, 3.1, 3.2)),
                        ("2^16, 1".to_owned(), spread(2.4, 2.6, 2.8))
                    ]
                },
            ]
        );
    }

    #[test]
    fn the_text_names_its_plots_and_keeps_the_rest() {
        let (text, plots) = illustrate("packet", TEXT);
        assert_eq!(plots.len(), 1);
        assert_eq!(plots[0].0, "packet-over-veth.svg");
        assert!(plots[0].1.starts_with("<svg ") && plots[0].1.ends_with("</svg>\n"));
        assert!(plots[0].1.contains("ratio (asked: ≥ 3)"));
        let without = text.replace("\n![Over veth](plots/packet-over-veth.svg)\n", "");
        assert_eq!(without.trim(), TEXT.trim());
    }
}

//! The screen: a line of what is shown, the list, a line of keys; questions and help in the middle.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table, TableState, Wrap};

use super::lines::show_rule;
use super::view::{BAN_SECONDS, Row, State, View};
use super::{By, Sort};

/// Lines that are not the list.
pub const AROUND: usize = 4;

/// Colours, for those who want them.
#[derive(Clone, Copy)]
pub struct Theme {
    pub colours: bool,
}

impl Theme {
    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }
}

const HELP: [(&str, &str); 12] = [
    ("d  p  f  s", "sort by dropped, passed, fill, source"),
    ("Tab, Shift-Tab", "by source, prefix, port, source port, size"),
    ("/", "filter by address, rule or limit; Enter keeps it, Esc drops it"),
    ("↑ ↓  k j", "choose a source"),
    ("PgUp PgDn", "a page up or down"),
    ("Home End", "to the worst, to the last"),
    ("b", "ban the chosen source, after a question"),
    ("Space", "hold the list still, or let it go on"),
    ("?  h  F1", "this"),
    ("q  Esc  ^C", "leave"),
    ("", ""),
    (
        "",
        "dropped is sampled, to about 32 per CPU; ports and sizes are estimated; fill is 1 of an empty bucket",
    ),
];

pub fn draw(frame: &mut Frame<'_>, view: &View, theme: Theme) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(view, theme)), head);
    list(frame, body, view, theme);
    frame.render_widget(Paragraph::new(footing(view, theme)), foot);
    match &view.state {
        State::Help => help(frame),
        State::Confirm(source) => confirm(frame, source, theme),
        State::Browse | State::Filter => {}
    }
}

fn heading(view: &View, theme: Theme) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut first = vec![Span::styled("limiter top", bold), Span::raw("  by ")];
    for by in By::ALL {
        let style = if by == view.by { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        first.push(Span::styled(format!(" {} ", by.name()), style));
    }
    let mut second =
        vec![Span::raw(format!("{} of {}, by {}", view.rows().len(), view.total(), view.sort.name()))];
    if !view.filter.is_empty() || view.state == State::Filter {
        second.push(Span::raw("  filter: "));
        second.push(Span::styled(view.filter.clone(), bold));
        if view.state == State::Filter {
            second.push(Span::styled(" ", Style::new().add_modifier(Modifier::REVERSED)));
        }
    }
    if let Some(basis) = &view.basis {
        second.push(Span::raw(format!("  {basis}")));
    }
    if view.paused {
        second.push(Span::styled("  held still", theme.colour(Color::Yellow).add_modifier(Modifier::BOLD)));
    }
    vec![Line::from(first), Line::from(second)]
}

fn list(frame: &mut Frame<'_>, area: Rect, view: &View, theme: Theme) {
    let arrow = |sort: Sort| if view.sort == sort { "▾" } else { "" };
    let right = |text: String| Cell::new(Line::from(text).alignment(Alignment::Right));
    // Nothing of what passes is sampled.
    let sampled = view.by.is_sampled();
    let passed = |cells: [Cell<'static>; 2]| cells.into_iter().filter(move |_| !sampled);
    let row = |first: [Cell<'static>; 2], mid: [Cell<'static>; 2], last: [Cell<'static>; 3]| {
        TableRow::new(first.into_iter().chain(passed(mid)).chain(last))
    };
    let fill = if sampled { "SHARE" } else { "FILL" };
    let header = row(
        [Cell::new(format!("{}{}", view.by.heading(), arrow(Sort::Source))), Cell::new("RULE")],
        [right(format!("{}PASSED", arrow(Sort::Passed))), right("PASSED/S".to_owned())],
        [
            right(format!("{}DROPPED", arrow(Sort::Dropped))),
            right("DROPPED/S".to_owned()),
            right(format!("{}{fill}", arrow(Sort::Fill))),
        ],
    )
    .style(Style::new().add_modifier(Modifier::BOLD));
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
    let line = |shown: &&Row| {
        let source = &shown.source;
        let style = if shown.dropped_rate.is_some_and(|rate| rate > 0.0) && !sampled {
            theme.colour(Color::Red)
        } else {
            Style::new()
        };
        row(
            [Cell::new(source.source.clone()), Cell::new(show_rule(source))],
            [right(source.passed.to_string()), right(rate(shown.passed_rate))],
            [
                right(format!("≈{}", source.dropped)),
                right(rate(shown.dropped_rate)),
                right(format!("{:.2}", source.fill)),
            ],
        )
        .style(style)
    };
    let rows = view.rows();
    // A narrow terminal keeps who and how much, and loses the rest first.
    let rule = if area.width < 80 { Constraint::Length(8) } else { Constraint::Min(10) };
    let width = rows.iter().map(|row| row.source.source.len()).max().unwrap_or(0).clamp(15, 43) as u16;
    let passed = [Constraint::Length(11), Constraint::Length(9)].into_iter().filter(|_| !sampled);
    let last =
        [Constraint::Length(12), Constraint::Length(10), Constraint::Length(if sampled { 6 } else { 5 })];
    let widths = [Constraint::Length(width), rule].into_iter().chain(passed).chain(last);
    let table = Table::new(rows.iter().map(line), widths)
        .header(header)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!rows.is_empty()).then(|| view.cursor()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn footing(view: &View, theme: Theme) -> Line<'static> {
    if let Some(trouble) = &view.trouble {
        return Line::styled(trouble.clone(), theme.colour(Color::Red).add_modifier(Modifier::BOLD));
    }
    match &view.message {
        Some(message) => Line::styled(message.clone(), Style::new().add_modifier(Modifier::BOLD)),
        None => Line::from("? help  / filter  d p f s sort  Tab view  b ban  Space hold  q leave"),
    }
}

fn help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> =
        HELP.iter().map(|(keys, does)| Line::from(format!("{keys:<15} {does}"))).collect();
    boxed(frame, "any key closes this", lines, 94);
}

fn confirm(frame: &mut Frame<'_>, source: &str, theme: Theme) {
    let question = Line::styled(
        format!("Ban {source} for {} minutes?", BAN_SECONDS / 60),
        theme.colour(Color::Red).add_modifier(Modifier::BOLD),
    );
    let lines = vec![question, Line::from("All its packets are dropped. y bans, any other key does not.")];
    boxed(frame, "ban", lines, 64);
}

fn boxed(frame: &mut Frame<'_>, title: &str, lines: Vec<Line<'_>>, width: u16) {
    let all = frame.area();
    let width = width.min(all.width);
    // A narrow one wraps.
    let inside = usize::from(width.saturating_sub(2)).max(1);
    let height: usize = lines.iter().map(|line| line.width().div_ceil(inside).max(1)).sum();
    let height = (height as u16 + 2).min(all.height);
    let area = Rect { x: (all.width - width) / 2, y: (all.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(format!(" {title} "));
    frame.render_widget(Paragraph::new(lines).block(block).wrap(Wrap { trim: false }), area);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crossterm::event::KeyCode;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::view::tests::{drops, press, source, view};
    use super::*;
    use crate::control::api::Sources;

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, Theme { colours: true })).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content.chunks(usize::from(width));
        rows.map(|row| {
            let line: String = row.iter().map(|cell| cell.symbol()).collect();
            format!("{}\n", line.trim_end())
        })
        .collect()
    }

    #[test]
    fn the_list_is_drawn() {
        let expected = "\
limiter top  by  source  prefix  port  source-port  size
4 of 4, by dropped
SOURCE            RULE                                 PASSED  PASSED/S     ▾DROPPED  DROPPED/S  FILL
203.0.113.9       web                                     300         -        ≈9600          -  1.00
203.0.113.77      web                                    4000         -          ≈64          -  0.50
9.0.0.1           web                                      20         -          ≈32          -  0.75
2001:db8:1:2::/64 web                                      60         -           ≈0          -  0.12

? help  / filter  d p f s sort  Tab view  b ban  Space hold  q leave
";
        assert_eq!(drawn(&view(), 101, 9), expected);
    }

    #[test]
    fn questions_and_help_are_drawn_over_it() {
        let mut view = view();
        press(&mut view, KeyCode::Char('b'));
        let text = drawn(&view, 100, 20);
        assert!(text.contains("Ban 203.0.113.9 for 10 minutes?") && text.contains("y bans"), "{text}");
        press(&mut view, KeyCode::Char('n'));
        assert!(drawn(&view, 100, 20).contains("not banned"));
        press(&mut view, KeyCode::Char('?'));
        assert!(drawn(&view, 100, 24).contains("hold the list still"));
    }

    #[test]
    fn estimates_are_drawn_with_what_they_rest_on() {
        let mut view = view();
        press(&mut view, KeyCode::Tab);
        press(&mut view, KeyCode::Tab);
        view.estimated(By::Port, &drops());
        let expected = "\
limiter top  by  source  prefix  port  source-port  size
3 of 3, by dropped  ≈ from 30 samples of 10100 drops in the last 5 s
PORT            RULE                                      ▾DROPPED  DROPPED/S  SHARE
udp/53          dns                                          ≈9000       1800   0.89
udp/123         dns                                          ≈1000        200   0.10
icmp/8          dns                                           ≈100         20   0.01

? help  / filter  d p f s sort  Tab view  b ban  Space hold  q leave
";
        assert_eq!(drawn(&view, 84, 8), expected);
    }

    #[test]
    fn a_filter_and_a_pause_are_shown() {
        let mut view = view();
        press(&mut view, KeyCode::Char('/'));
        press(&mut view, KeyCode::Char('9'));
        press(&mut view, KeyCode::Enter);
        press(&mut view, KeyCode::Char(' '));
        assert!(drawn(&view, 100, 10).contains("2 of 4, by dropped  filter: 9  held still"));
    }

    #[test]
    fn any_size_is_drawn() {
        let mut view = view();
        for state in [State::Browse, State::Filter, State::Help, State::Confirm("2001:db8::/64".to_owned())] {
            view.state = state;
            for (width, height) in [(1, 1), (2, 3), (10, 2), (20, 5), (40, 50), (300, 4), (500, 200)] {
                drawn(&view, width, height);
            }
        }
    }

    #[test]
    fn no_text_reaches_the_terminal_as_a_command() {
        let mut view = view();
        let mut hostile = source("203.0.113.1", 1, 1, 0.0);
        hostile.rule = "a\u{1b}[2Jb\rc".to_owned();
        view.arrived(By::Source, Sources { sources: vec![hostile] }, Instant::now());
        view.trouble = Some("x\u{1b}]0;title\u{7}".to_owned());
        let text = drawn(&view, 100, 6);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}') && !text.contains('\r'), "{text:?}");
    }

    #[test]
    fn without_colours_there_are_none() {
        let mut terminal = Terminal::new(TestBackend::new(100, 10)).unwrap();
        let mut view = view();
        view.state = State::Confirm("203.0.113.9".to_owned());
        view.paused = true;
        terminal.draw(|frame| draw(frame, &view, Theme { colours: false })).unwrap();
        let cells = &terminal.backend().buffer().content;
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
}

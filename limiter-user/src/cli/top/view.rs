//! What the screen shows and what a key does to it, apart from any terminal.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ipnet::IpNet;

use super::{By, Looked, Sort, basis};
use crate::cli::session::Session;
use crate::control::api::{DropGroup, Drops, Source, Sources};

/// How long a source banned from the list stays banned.
pub const BAN_SECONDS: u64 = 600;

/// Longest filter.
const FILTER: usize = 64;

/// What the keys mean now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Browse,
    /// Letters go to the filter.
    Filter,
    /// Whether to ban this source.
    Confirm(String),
    Help,
}

/// What the screen's owner has to do after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Other sources are to be asked for.
    Refresh,
    Ban(String),
    Quit,
}

/// A source with what became of it since the look before.
#[derive(Clone, Debug)]
pub struct Row {
    pub source: Source,
    /// Per second; `None` at the first look.
    pub passed_rate: Option<f64>,
    pub dropped_rate: Option<f64>,
}

/// Packets passed and dropped, by source.
type Counts = HashMap<String, (u64, u64)>;

pub struct View {
    pub by: By,
    pub sort: Sort,
    pub state: State,
    pub filter: String,
    pub paused: bool,
    /// The last thing that was done or went wrong.
    pub message: Option<String>,
    /// Why the rows are old.
    pub trouble: Option<String>,
    /// On how much estimates rest.
    pub basis: Option<String>,
    /// Where the operator is logged in from.
    sessions: Vec<Session>,
    rows: Vec<Row>,
    /// The source the cursor is on; it stays on it when rows move.
    selected: Option<String>,
    /// When the last look was, and its counts.
    before: Option<(Instant, Counts)>,
}

impl View {
    pub fn new(by: By, sort: Sort, sessions: Vec<Session>) -> Self {
        Self {
            by,
            sort,
            state: State::Browse,
            filter: String::new(),
            paused: false,
            message: None,
            trouble: None,
            basis: None,
            sessions,
            rows: Vec::new(),
            selected: None,
            before: None,
        }
    }

    /// New numbers of either kind.
    pub fn looked(&mut self, by: By, looked: Looked, now: Instant) {
        match looked {
            Looked::Sources(sources) => self.arrived(by, sources, now),
            Looked::Drops(drops) => self.estimated(by, &drops),
        }
    }

    /// New estimates. They are of the last seconds, and tell their rates themselves.
    pub fn estimated(&mut self, by: By, drops: &Drops) {
        if by != self.by || self.paused {
            return;
        }
        self.trouble = None;
        self.basis = Some(basis(drops));
        let rate = |packets: u64| Some(packets as f64 / drops.window_s.max(0.1));
        let row = |group: &DropGroup| Row {
            source: source_of(group),
            passed_rate: None,
            dropped_rate: rate(group.packets),
        };
        self.rows = drops.drops.iter().map(row).collect();
        self.sort_rows();
    }

    /// New numbers. Those of another view than the present one came too late.
    pub fn arrived(&mut self, by: By, sources: Sources, now: Instant) {
        if by != self.by || self.paused {
            return;
        }
        self.trouble = None;
        let before = self.before.take();
        let counts = |source: &Source| (source.passed, source.dropped);
        let rate = |source: &Source| {
            let (then, known) = before.as_ref()?;
            let seconds = now.saturating_duration_since(*then).as_secs_f64();
            // A source that was not in the list before: its past is unknown, unless all were in it.
            let (passed, dropped) = known.get(&source.source)?;
            let per_second = |count: u64, past: u64| count.saturating_sub(past) as f64 / seconds.max(0.001);
            Some((per_second(source.passed, *passed), per_second(source.dropped, *dropped)))
        };
        self.rows = sources
            .sources
            .iter()
            .map(|source| {
                let rates = rate(source);
                let (passed_rate, dropped_rate) = (rates.map(|rates| rates.0), rates.map(|rates| rates.1));
                Row { source: source.clone(), passed_rate, dropped_rate }
            })
            .collect();
        let known = sources.sources.iter().map(|source| (source.source.clone(), counts(source)));
        self.before = Some((now, known.collect()));
        self.sort_rows();
    }

    fn sort_rows(&mut self) {
        let sort = self.sort;
        self.rows.sort_by(|a, b| order(sort, &a.source, &b.source));
    }

    /// What passes the filter, in order.
    pub fn rows(&self) -> Vec<&Row> {
        let filter = self.filter.to_lowercase();
        let matches = |row: &&Row| {
            let source = &row.source;
            let limit = source.limit.as_deref().unwrap_or_default();
            [source.source.as_str(), &source.rule, limit]
                .iter()
                .any(|text| text.to_lowercase().contains(&filter))
        };
        self.rows.iter().filter(matches).collect()
    }

    /// Rows there are without a filter.
    pub fn total(&self) -> usize {
        self.rows.len()
    }

    /// Place of the cursor among [`Self::rows`]: the top, until it is moved.
    pub fn cursor(&self) -> usize {
        let place = |selected: &String| self.rows().iter().position(|row| row.source.source == *selected);
        self.selected.as_ref().and_then(place).unwrap_or(0)
    }

    fn chosen(&self) -> Option<String> {
        self.rows().get(self.cursor()).map(|row| row.source.source.clone())
    }

    fn move_by(&mut self, steps: isize) {
        let last = self.rows().len().saturating_sub(1);
        let to = self.cursor().saturating_add_signed(steps).min(last);
        // At the top it follows whoever is worst.
        self.selected = if to == 0 { None } else { self.rows().get(to).map(|row| row.source.source.clone()) };
    }

    /// `page`: rows that fit the screen.
    pub fn key(&mut self, key: KeyEvent, page: usize) -> Action {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'C')) {
            return Action::Quit;
        }
        match self.state.clone() {
            State::Browse => self.browse(key, page),
            State::Filter => self.edit(key),
            State::Confirm(source) => {
                self.state = State::Browse;
                if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                    self.message = Some(format!("banning {source} …"));
                    return Action::Ban(source);
                }
                self.message = Some("not banned".to_owned());
                Action::Nothing
            }
            State::Help => {
                self.state = State::Browse;
                Action::Nothing
            }
        }
    }

    fn browse(&mut self, key: KeyEvent, page: usize) -> Action {
        self.message = None;
        let page = page.max(1) as isize;
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.filter.is_empty() => return Action::Quit,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.state = State::Help,
            KeyCode::Char('/') => self.state = State::Filter,
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                if !self.paused {
                    return Action::Refresh;
                }
            }
            KeyCode::Char('d') => return self.sort_by(Sort::Dropped),
            KeyCode::Char('p') => return self.sort_by(Sort::Passed),
            KeyCode::Char('f') => return self.sort_by(Sort::Fill),
            KeyCode::Char('s') => return self.sort_by(Sort::Source),
            KeyCode::Tab => return self.turn(1),
            KeyCode::BackTab => return self.turn(By::ALL.len() - 1),
            KeyCode::Char('b') => self.ask_to_ban(),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::PageUp => self.move_by(-page),
            KeyCode::PageDown => self.move_by(page),
            KeyCode::Home => self.selected = None,
            KeyCode::End => self.move_by(isize::MAX),
            _ => {}
        }
        Action::Nothing
    }

    fn edit(&mut self, key: KeyEvent) -> Action {
        match key.code {
            KeyCode::Enter => self.state = State::Browse,
            KeyCode::Esc => {
                self.filter.clear();
                self.state = State::Browse;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER => self.filter.push(letter),
            _ => {}
        }
        Action::Nothing
    }

    fn sort_by(&mut self, sort: Sort) -> Action {
        self.sort = sort;
        self.sort_rows();
        // The daemon sends the worst by the order asked for.
        Action::Refresh
    }

    /// To another view.
    fn turn(&mut self, steps: usize) -> Action {
        let place = By::ALL.iter().position(|by| *by == self.by).unwrap_or(0);
        self.by = By::ALL[(place + steps) % By::ALL.len()];
        self.rows.clear();
        self.basis = None;
        self.before = None;
        self.selected = None;
        // What is paused is what was shown.
        self.paused = false;
        Action::Refresh
    }

    fn ask_to_ban(&mut self) {
        if self.by.is_sampled() {
            self.message = Some("sources are banned: Tab shows them".to_owned());
            return;
        }
        let Some(source) = self.chosen() else {
            self.message = Some("nobody is chosen".to_owned());
            return;
        };
        match self.sessions.iter().find(|session| covers(&source, session.client)) {
            Some(session) => {
                self.message = Some(format!(
                    "{source} is not banned from here: your own ssh session comes from {}",
                    session.client
                ));
            }
            None => self.state = State::Confirm(source),
        }
    }
}

/// Whether a source, an address or a prefix, holds the address. One that is neither is taken to.
fn covers(source: &str, address: IpAddr) -> bool {
    let network = source.parse::<IpNet>().ok().or_else(|| source.parse::<IpAddr>().ok().map(IpNet::from));
    network.is_none_or(|network| network.contains(&address))
}

/// A group of drops as a source: it is sorted, filtered and shown like one. Its fill is its share.
pub fn source_of(group: &DropGroup) -> Source {
    Source {
        source: group.key.clone(),
        rule: group.rule.clone(),
        limit: None,
        passed: 0,
        dropped: group.packets,
        fill: group.share,
        penalised_until: None,
        buckets: 0,
    }
}

/// Worst first.
pub fn order(sort: Sort, a: &Source, b: &Source) -> Ordering {
    let by_dropped = || (b.dropped, b.passed).cmp(&(a.dropped, a.passed));
    let by_source = || place(&a.source).cmp(&place(&b.source));
    match sort {
        Sort::Dropped => by_dropped(),
        Sort::Passed => (b.passed, b.dropped).cmp(&(a.passed, a.dropped)),
        Sort::Fill => b.fill.total_cmp(&a.fill).then_with(by_dropped),
        Sort::Source => Ordering::Equal,
    }
    .then_with(by_source)
}

/// By number, not by text: of an address, of a port of a protocol, of a size.
fn place(source: &str) -> (Option<IpAddr>, &str, u32, &str) {
    let (head, tail) = source.split_once('/').unwrap_or((source, ""));
    if let Ok(address) = head.parse() {
        return (Some(address), "", 0, source);
    }
    match source.split_once('-').map_or(source, |(least, _)| least).parse() {
        Ok(size) => (None, "", size, source),
        Err(_) => (None, head, tail.parse().unwrap_or(0), source),
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    pub fn source(source: &str, passed: u64, dropped: u64, fill: f64) -> Source {
        Source {
            source: source.to_owned(),
            rule: "web".to_owned(),
            limit: None,
            passed,
            dropped,
            fill,
            penalised_until: None,
            buckets: 1,
        }
    }

    pub fn sources() -> Sources {
        Sources {
            sources: vec![
                source("203.0.113.9", 300, 9600, 1.0),
                source("203.0.113.77", 4000, 64, 0.5),
                source("9.0.0.1", 20, 32, 0.75),
                source("2001:db8:1:2::/64", 60, 0, 0.125),
            ],
        }
    }

    pub fn view() -> View {
        let mut view = View::new(By::Source, Sort::Dropped, Vec::new());
        view.arrived(By::Source, sources(), Instant::now());
        view
    }

    pub fn press(view: &mut View, code: KeyCode) -> Action {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), 2)
    }

    fn shown(view: &View) -> Vec<String> {
        view.rows().iter().map(|row| row.source.source.clone()).collect()
    }

    #[test]
    fn keys_sort() {
        let mut view = view();
        for (key, expected) in [
            ('p', ["203.0.113.77", "203.0.113.9", "2001:db8:1:2::/64", "9.0.0.1"]),
            ('d', ["203.0.113.9", "203.0.113.77", "9.0.0.1", "2001:db8:1:2::/64"]),
            ('f', ["203.0.113.9", "9.0.0.1", "203.0.113.77", "2001:db8:1:2::/64"]),
            ('s', ["9.0.0.1", "203.0.113.9", "203.0.113.77", "2001:db8:1:2::/64"]),
        ] {
            assert_eq!(press(&mut view, KeyCode::Char(key)), Action::Refresh);
            assert_eq!(shown(&view), expected, "{key}");
        }
    }

    #[test]
    fn a_filter_is_typed_and_taken_away() {
        let mut view = view();
        press(&mut view, KeyCode::Char('/'));
        for letter in "203.0.q".chars() {
            // In here no letter is a command.
            assert_eq!(press(&mut view, KeyCode::Char(letter)), Action::Nothing);
        }
        assert!(shown(&view).is_empty());
        press(&mut view, KeyCode::Backspace);
        assert_eq!(shown(&view), ["203.0.113.9", "203.0.113.77"]);
        press(&mut view, KeyCode::Enter);
        assert_eq!(view.state, State::Browse);
        assert_eq!(press(&mut view, KeyCode::Esc), Action::Nothing);
        assert_eq!(shown(&view).len(), 4);
        assert_eq!(press(&mut view, KeyCode::Esc), Action::Quit);
    }

    #[test]
    fn the_cursor_stays_on_its_source() {
        let mut view = view();
        press(&mut view, KeyCode::Down);
        assert_eq!(view.chosen().as_deref(), Some("203.0.113.77"));
        press(&mut view, KeyCode::Char('s'));
        assert_eq!((view.chosen().as_deref(), view.cursor()), (Some("203.0.113.77"), 2));
        press(&mut view, KeyCode::End);
        assert_eq!(view.cursor(), 3);
        press(&mut view, KeyCode::PageUp);
        assert_eq!(view.cursor(), 1);
        press(&mut view, KeyCode::PageUp);
        press(&mut view, KeyCode::Up);
        assert_eq!(view.cursor(), 0);
    }

    #[test]
    fn a_ban_needs_a_yes() {
        let mut view = view();
        press(&mut view, KeyCode::Char('b'));
        assert_eq!(view.state, State::Confirm("203.0.113.9".to_owned()));
        assert_eq!(press(&mut view, KeyCode::Enter), Action::Nothing);
        assert_eq!(view.message.as_deref(), Some("not banned"));
        press(&mut view, KeyCode::Char('b'));
        assert_eq!(press(&mut view, KeyCode::Char('y')), Action::Ban("203.0.113.9".to_owned()));
    }

    #[test]
    fn the_source_asked_about_is_the_one_banned_whatever_moves() {
        let mut view = view();
        press(&mut view, KeyCode::Char('b'));
        let mut later = sources();
        later.sources[2].dropped = 1_000_000;
        view.arrived(By::Source, later, Instant::now());
        assert_eq!(press(&mut view, KeyCode::Char('y')), Action::Ban("203.0.113.9".to_owned()));
    }

    #[test]
    fn your_own_session_is_not_banned() {
        let session = |client: &str| Session {
            client: client.parse().unwrap(),
            client_port: 50_000,
            server: "192.0.2.1".parse().unwrap(),
            server_port: 22,
        };
        let mut view = view();
        view.sessions = vec![session("2001:db8:1:2::77"), session("203.0.113.9")];
        press(&mut view, KeyCode::Char('b'));
        assert_eq!(view.state, State::Browse);
        assert!(view.message.as_ref().unwrap().contains("your own ssh session"));
        press(&mut view, KeyCode::End);
        press(&mut view, KeyCode::Char('b'));
        assert_eq!(view.state, State::Browse);
        press(&mut view, KeyCode::Up);
        press(&mut view, KeyCode::Char('b'));
        assert_eq!(view.state, State::Confirm("9.0.0.1".to_owned()));
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let mut view = View::new(By::Source, Sort::Dropped, Vec::new());
        let start = Instant::now();
        view.arrived(By::Source, sources(), start);
        assert!(view.rows()[0].dropped_rate.is_none());
        let mut later = sources();
        later.sources[0].dropped += 640;
        later.sources[0].passed += 100;
        // A bucket claimed anew begins at nothing.
        later.sources[1].dropped = 0;
        view.arrived(By::Source, later, start + Duration::from_secs(2));
        let rows = view.rows();
        assert_eq!((rows[0].passed_rate, rows[0].dropped_rate), (Some(50.0), Some(320.0)));
        let anew = rows.iter().find(|row| row.source.source == "203.0.113.77").unwrap();
        assert_eq!(anew.dropped_rate, Some(0.0));
    }

    #[test]
    fn what_is_paused_does_not_move() {
        let mut view = view();
        press(&mut view, KeyCode::Char(' '));
        view.arrived(By::Source, Sources { sources: Vec::new() }, Instant::now());
        assert_eq!(shown(&view).len(), 4);
        assert_eq!(press(&mut view, KeyCode::Char(' ')), Action::Refresh);
        view.arrived(By::Source, Sources { sources: Vec::new() }, Instant::now());
        assert!(shown(&view).is_empty());
    }

    #[test]
    fn views_go_round_and_late_answers_are_left_out() {
        let mut view = view();
        press(&mut view, KeyCode::Tab);
        assert_eq!(view.by, By::Prefix);
        view.arrived(By::Source, sources(), Instant::now());
        assert!(view.rows().is_empty());
        press(&mut view, KeyCode::BackTab);
        press(&mut view, KeyCode::BackTab);
        assert_eq!(view.by, By::Size);
    }

    pub fn drops() -> Drops {
        let group = |key: &str, packets, share| DropGroup {
            key: key.to_owned(),
            rule: "dns".to_owned(),
            packets,
            bytes: packets * 60,
            share,
            samples: 10,
        };
        Drops {
            by: "port".to_owned(),
            window_s: 5.0,
            samples: 30,
            dropped: 10_100,
            drops: vec![
                group("udp/53", 9000, 0.891),
                group("udp/123", 1000, 0.099),
                group("icmp/8", 100, 0.01),
            ],
        }
    }

    #[test]
    fn estimates_are_sorted_and_filtered_like_sources_and_nobody_is_banned_by_them() {
        let mut view = view();
        press(&mut view, KeyCode::Tab);
        press(&mut view, KeyCode::Tab);
        view.estimated(By::SourcePort, &drops());
        assert!(view.rows().is_empty(), "of another view");
        view.estimated(By::Port, &drops());
        assert_eq!(shown(&view), ["udp/53", "udp/123", "icmp/8"]);
        assert_eq!(view.rows()[0].dropped_rate, Some(1800.0));
        assert_eq!(view.basis.as_deref(), Some("≈ from 30 samples of 10100 drops in the last 5 s"));
        press(&mut view, KeyCode::Char('s'));
        assert_eq!(shown(&view), ["icmp/8", "udp/53", "udp/123"]);
        press(&mut view, KeyCode::Char('b'));
        assert_eq!(view.state, State::Browse);
        "/udp".chars().for_each(|letter| drop(press(&mut view, KeyCode::Char(letter))));
        assert_eq!(shown(&view), ["udp/53", "udp/123"]);
        press(&mut view, KeyCode::Enter);
        press(&mut view, KeyCode::Tab);
        assert_eq!((view.basis.as_deref(), view.rows().len()), (None, 0));
    }

    #[test]
    fn sizes_are_in_order() {
        let mut classes = ["1024-1500", "64-127", "1501-", "0-63"];
        classes.sort_by(|a, b| place(a).cmp(&place(b)));
        assert_eq!(classes, ["0-63", "64-127", "1024-1500", "1501-"]);
    }

    #[test]
    fn control_c_always_ends_it() {
        for state in [State::Browse, State::Filter, State::Help, State::Confirm("x".to_owned())] {
            let mut view = view();
            view.state = state;
            assert_eq!(view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), 2), Action::Quit);
        }
    }

    #[test]
    fn an_empty_list_takes_every_key() {
        let mut view = View::new(By::Source, Sort::Dropped, Vec::new());
        for code in
            [KeyCode::Up, KeyCode::Down, KeyCode::End, KeyCode::PageDown, KeyCode::Home, KeyCode::Char('b')]
        {
            assert_eq!(press(&mut view, code), Action::Nothing);
        }
        assert_eq!(view.message.as_deref(), Some("nobody is chosen"));
    }
}

//! The terminal's side of `top`: takes it, gives it back on any exit, and never waits for the daemon with a key unread.

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crossterm::event::{Event, EventStream, KeyEventKind};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use serde::Serialize;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::super::output::{Problem, Style};
use super::draw::{AROUND, Theme, draw};
use super::view::{Action, BAN_SECONDS, View};
use super::{By, Looked, TopArguments, look, path};
use crate::cli::session;
use crate::control::client::{Client, ClientError};

const PERIOD: Duration = Duration::from_secs(1);

/// At least so many are asked for, so that a filter and an order of our own have something to choose from.
const LEAST: usize = 1000;

/// `POST /v1/bans`
#[derive(Serialize)]
struct Bans<'a> {
    bans: [Ban<'a>; 1],
}

#[derive(Serialize)]
struct Ban<'a> {
    source: &'a str,
    for_s: u64,
    reason: &'a str,
}

/// The terminal is given back when this is dropped; a panic gives it back by the hook ratatui puts in.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

type Answer = (By, Result<Looked, ClientError>);

pub async fn run(client: &Client, arguments: TopArguments) -> Result<ExitCode, Problem> {
    let failed = |error: io::Error| Problem::failed(format!("cannot use the terminal: {error}"), None);
    let TopArguments { rule, by, sort, number } = arguments;
    let number = number.max(LEAST);
    // A first look before the terminal is taken: what fails is said where everything is said.
    let first = look(client, by, &path(rule.as_deref(), by, sort, number)).await?;
    let mut view = View::new(by, sort, session::own());
    view.looked(by, first, Instant::now());

    let mut signals = Signals::new().map_err(failed)?;
    let theme = Theme { colours: Style::of(&io::stdout()).is_on() };
    let mut screen = Screen(ratatui::try_init().map_err(failed)?);
    let mut events = EventStream::new();
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looking: Option<JoinHandle<Answer>> = None;
    let mut ban: Option<JoinHandle<Result<Value, ClientError>>> = None;
    let fetch = |view: &View| {
        let (client, by) = (client.clone(), view.by);
        let path = path(rule.as_deref(), by, view.sort, number);
        Some(tokio::spawn(async move { (by, look(&client, by, &path).await) }))
    };

    loop {
        screen.0.draw(|frame| draw(frame, &view, theme)).map_err(failed)?;
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                    let page = screen.0.size().map_or(1, |size| usize::from(size.height).saturating_sub(AROUND));
                    match view.key(key, page) {
                        Action::Nothing => {}
                        Action::Refresh => {
                            abort(looking.take());
                            looking = fetch(&view);
                        }
                        Action::Ban(source) => ban = Some(send_ban(client, source)),
                        Action::Quit => return Ok(ExitCode::SUCCESS),
                    }
                }
                // A new size is drawn like anything else.
                Some(Ok(_)) => {}
                // The terminal is gone.
                Some(Err(_)) | None => return Ok(ExitCode::SUCCESS),
            },
            _ = ticks.tick() => if looking.is_none() && !view.paused {
                looking = fetch(&view);
            },
            answer = finished(&mut looking) => match answer {
                Some((by, Ok(looked))) => view.looked(by, looked, Instant::now()),
                Some((_, Err(error))) => view.trouble = Some(format!("{error}; these numbers are old")),
                None => {}
            },
            answer = finished(&mut ban) => view.message = answer.map(|answer| match answer {
                Ok(_) => format!("banned for {} minutes", BAN_SECONDS / 60),
                Err(error) => format!("not banned: {error}"),
            }),
            code = signals.next() => return Ok(ExitCode::from(code)),
        }
    }
}

fn send_ban(client: &Client, source: String) -> JoinHandle<Result<Value, ClientError>> {
    let client = client.clone();
    tokio::spawn(async move {
        let ban = Ban { source: &source, for_s: BAN_SECONDS, reason: "banned from `limiterctl top`" };
        client.post_body("/v1/bans", &Bans { bans: [ban] }).await
    })
}

/// What the task found, once it is done; never, where there is none.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Option<T> {
    match task {
        Some(running) => {
            let result = running.await;
            *task = None;
            result.ok()
        }
        None => std::future::pending().await,
    }
}

fn abort<T>(task: Option<JoinHandle<T>>) {
    if let Some(task) = task {
        task.abort();
    }
}

/// The signals that end a program. The terminal is given back before they do.
struct Signals([(Signal, u8); 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let one = |kind: SignalKind| io::Result::Ok((signal(kind)?, 128 + kind.as_raw_value() as u8));
        Ok(Self([one(SignalKind::terminate())?, one(SignalKind::hangup())?, one(SignalKind::interrupt())?]))
    }

    /// The exit code of the signal that came.
    async fn next(&mut self) -> u8 {
        let [terminate, hangup, interrupt] = &mut self.0;
        tokio::select! {
            _ = terminate.0.recv() => terminate.1,
            _ = hangup.0.recv() => hangup.1,
            _ = interrupt.0.recv() => interrupt.1,
        }
    }
}

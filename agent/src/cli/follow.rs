//! Waiting for a bag, with or without a display of its progress.
//!
//! The bag does not depend on the waiting: Ctrl-C ends only the command, which says so, and an agent that is restarted meanwhile is
//! waited for. Progress is one line that is redrawn on a terminal, and nothing elsewhere. A command that shows no progress says on
//! standard error why nothing runs, whenever the reason changes.

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, BagState};

use super::context::{Context, FAILURE};
use super::interrupt::on_interrupt;
use super::progress;
use super::which::Found;
use crate::output::{self, Format};

/// First and last interval between two looks.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// How long the agent may be away before the command fails.
const ABSENCE_MAX: Duration = Duration::from_secs(15);
/// A reason for which nothing runs is told once it has held for so long.
const REASON_HOLDS: Duration = Duration::from_secs(2);
/// Goes to the beginning of the line and clears it.
const CLEAR: &str = "\r\x1b[K";
/// Columns of a terminal that does not say how many it has, and most that progress takes.
const COLUMNS: usize = 80;

/// Where progress is displayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Nowhere.
    Silent,
    /// On the terminal of standard output.
    Stdout,
    /// On the terminal of standard error.
    Stderr,
}

impl View {
    pub(super) fn on_stdout() -> Self {
        if shows_cursor(io::stdout().is_terminal()) { Self::Stdout } else { Self::Silent }
    }

    pub(super) fn on_stderr() -> Self {
        if shows_cursor(io::stderr().is_terminal()) { Self::Stderr } else { Self::Silent }
    }

    /// Redraws the line.
    fn draw(self, text: &str) -> io::Result<()> {
        let write = |out: &mut dyn Write| {
            out.write_all(CLEAR.as_bytes())?;
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        match self {
            Self::Silent => Ok(()),
            Self::Stdout => write(&mut io::stdout().lock()),
            Self::Stderr => write(&mut io::stderr().lock()),
        }
    }

    fn columns(self) -> usize {
        let size = match self {
            Self::Silent => return COLUMNS,
            Self::Stdout => rustix::termios::tcgetwinsize(io::stdout()),
            Self::Stderr => rustix::termios::tcgetwinsize(io::stderr()),
        };
        size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(COLUMNS).min(COLUMNS)
    }
}

fn shows_cursor(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Waits until the bag is closed, prints its outcome, and returns the exit code.
///
/// Of several bags one after the other; the exit code is the highest.
pub(super) fn to_the_end(context: &Context, found: &Found, view: View) -> anyhow::Result<ExitCode> {
    // JSON is one value, and watching is for people.
    let view = if context.format == Format::Json && view == View::Stdout { View::Silent } else { view };
    let followed = Arc::new(OnceLock::new());
    quit_on_interrupt(view, context.format, "watch", followed.clone())?;
    if !found.is_one {
        followed.get_or_init(|| found.ids.clone());
    }
    let mut bags = Vec::with_capacity(found.ids.len());
    for id in &found.ids {
        let bag = follow(context, id, view, &followed)?;
        if context.format == Format::Text {
            let mut out = io::stdout().lock();
            for sentence in progress::outcome(&bag, context.is_verbose).lines() {
                output::paragraph(&mut out, "", sentence)?;
            }
            out.flush()?;
        }
        bags.push(bag);
    }
    match (context.format, found.is_one) {
        (Format::Json, true) => output::json(&bags[0])?,
        (Format::Json, false) => output::json(&bags)?,
        (Format::Text, _) => {}
    }
    Ok(ExitCode::from(bags.iter().map(|bag| code(bag.state)).max().unwrap_or(0)))
}

fn follow(context: &Context, id: &str, view: View, followed: &OnceLock<Vec<String>>) -> anyhow::Result<Bag> {
    let mut client = context.client()?;
    let mut bag = client.bag(id)?.bag;
    followed.get_or_init(|| vec![bag.id.clone()]);
    let mut reason = Reason::default();
    let mut wait = LOOK_MIN;
    loop {
        if bag.state.is_closed() {
            break;
        }
        if view != View::Silent {
            view.draw(&progress::fitted(&bag, view.columns()))?;
        } else if context.format == Format::Text
            && let Some(sentence) = reason.next(&bag, Instant::now())
        {
            output::notice(&sentence)?;
        }
        thread::sleep(wait);
        wait = (wait * 3 / 2).min(LOOK_MAX);
        bag = look(context, &mut client, &bag.id)?;
    }
    view.draw("")?;
    Ok(bag)
}

/// Why nothing runs, as it was told last.
#[derive(Debug, Default)]
pub(super) struct Reason {
    told: Option<String>,
    /// What holds now, and since when.
    holds: Option<(String, Instant)>,
}

impl Reason {
    /// What is to be told now: a reason that is another than the last one told, and has held for a while.
    pub(super) fn next(&mut self, bag: &Bag, now: Instant) -> Option<String> {
        let code = bag.bounds.first().map(|bound| bound.code.clone()).unwrap_or_default();
        match &self.holds {
            Some((holds, since)) if *holds == code => {
                if now.duration_since(*since) < REASON_HOLDS || self.told.as_ref() == Some(&code) {
                    return None;
                }
            }
            _ => {
                self.holds = Some((code, now));
                return None;
            }
        }
        let told = self.told.replace(code);
        match bag.bounds.first() {
            // That tasks run is worth a sentence only after one which said that none does.
            Some(bound) if bound.code == "runs" => {
                told.filter(|told| told != "runs").map(|_| format!("it goes on: {}", bound.sentence))
            }
            Some(bound) => Some(format!("waiting: {}", progress::bound(bound))),
            None => None,
        }
    }
}

/// Asks for the bag, repeatedly while the agent is being restarted.
pub(super) fn look(context: &Context, client: &mut Client, id: &str) -> Result<Bag, ClientError> {
    let begin = Instant::now();
    loop {
        let error = match client.bag(id) {
            Ok(detail) => return Ok(detail.bag),
            Err(error) => error,
        };
        if !error.is_absence() || begin.elapsed() > ABSENCE_MAX {
            return Err(error);
        }
        thread::sleep(LOOK_MAX);
        // It has another port and token now.
        match context.client() {
            Ok(found) => *client = found,
            Err(error) if error.is_absence() => {}
            Err(error) => return Err(error),
        }
    }
}

/// From now on Ctrl-C and SIGTERM end the program at once, and people read that the bag goes on and by which verb to follow it.
pub(super) fn quit_on_interrupt(
    view: View,
    format: Format,
    verb: &'static str,
    followed: Arc<OnceLock<Vec<String>>>,
) -> anyhow::Result<()> {
    on_interrupt(move |why| {
        let tell = || {
            view.draw("")?;
            match followed.get() {
                Some(ids) if format == Format::Text => {
                    let ids: Vec<&str> = ids.iter().map(|id| output::short_id(id)).collect();
                    let (what, them) = if ids.len() == 1 {
                        (format!("bag {} goes on", ids[0]), "it")
                    } else {
                        ("the bags go on".to_owned(), "them")
                    };
                    output::notice(&format!("{what}; follow {them} with: idlewood bag {verb} {}", ids.join(" ")))
                }
                _ => Ok(()),
            }
        };
        // Even if nobody could be told.
        match tell() {
            Ok(()) | Err(_) => std::process::exit(why.code().into()),
        }
    })
}

pub(super) fn code(state: BagState) -> u8 {
    match state {
        BagState::Succeeded => 0,
        BagState::Failed => 3,
        BagState::Cancelled => 4,
        // Not reached: these are not closed.
        BagState::Held | BagState::Waiting | BagState::Measuring | BagState::Running => FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_it_has_held_and_when_it_changes() {
        let fixture = include_str!("../../tests/fixtures/bag.json");
        let any: Bag = serde_json::from_str(fixture).expect("it is a bag");
        let with = |code: &str| {
            let text = format!("{{\"code\":\"{code}\",\"sentence\":\"{code} it is\"}}");
            Bag { bounds: vec![serde_json::from_str(&text).expect("a bound")], ..any.clone() }
        };
        let (mut reason, begin) = (Reason::default(), Instant::now());
        let mut at = |seconds, code| reason.next(&with(code), begin + Duration::from_secs(seconds));
        assert_eq!([at(0, "runs"), at(9, "runs")], [None, None], "it runs as it should");
        assert_eq!([at(10, "paused"), at(11, "paused")], [None, None], "not for a moment");
        assert_eq!(at(12, "paused").as_deref(), Some("waiting: paused it is"));
        assert_eq!([at(20, "paused"), at(30, "runs")], [None, None], "once");
        assert_eq!(at(32, "runs").as_deref(), Some("it goes on: runs it is"));
        assert_eq!(at(40, "runs"), None);
    }

    #[test]
    fn the_exit_code_says_how_it_ended() {
        assert_eq!([BagState::Succeeded, BagState::Failed, BagState::Cancelled].map(code), [0, 3, 4]);
    }
}

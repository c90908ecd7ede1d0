//! Waiting for a bag, with or without a display of its progress.
//!
//! The bag does not depend on the waiting: Ctrl-C ends only the command, and an agent that is restarted meanwhile is
//! waited for. On a terminal one line is redrawn; elsewhere every change is printed on a line of its own.

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use idlewood_api::client::{Client, ClientError};
use idlewood_api::{Bag, BagState};

use super::context::{Context, FAILURE};
use super::interrupt::on_interrupt;
use super::kept;
use crate::output::{self, Format};

/// First and last interval between two looks.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(500);
/// How long the agent may be away before the command fails.
const ABSENCE_MAX: Duration = Duration::from_secs(15);
/// Cells of the bar.
const BAR_CELLS: u64 = 20;
/// Goes to the beginning of the line and clears it.
const CLEAR: &str = "\r\x1b[K";

/// Where progress is displayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Nowhere.
    Silent,
    /// On standard output.
    Stdout {
        /// Redraw one line instead of writing many.
        redraws: bool,
    },
    /// On standard error.
    Stderr {
        /// Redraw one line instead of writing many.
        redraws: bool,
    },
}

impl View {
    pub(super) fn on_stdout() -> Self {
        Self::Stdout { redraws: shows_cursor(io::stdout().is_terminal()) }
    }

    pub(super) fn on_stderr() -> Self {
        Self::Stderr { redraws: shows_cursor(io::stderr().is_terminal()) }
    }

    fn redraws(self) -> bool {
        matches!(self, Self::Stdout { redraws: true } | Self::Stderr { redraws: true })
    }

    fn write(self, text: &str) -> io::Result<()> {
        let write = |out: &mut dyn Write| {
            out.write_all(text.as_bytes())?;
            out.flush()
        };
        match self {
            Self::Silent => Ok(()),
            Self::Stdout { .. } => write(&mut io::stdout().lock()),
            Self::Stderr { .. } => write(&mut io::stderr().lock()),
        }
    }
}

fn shows_cursor(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Waits until the bag is closed, prints its outcome, and returns the exit code.
pub(super) fn to_the_end(context: &Context, id: &str, view: View) -> anyhow::Result<ExitCode> {
    // JSON is one value, and watching is for people.
    let view = if context.format == Format::Json && matches!(view, View::Stdout { .. }) { View::Silent } else { view };
    quit_on_interrupt(view)?;
    let bag = follow(context, id, view)?;
    match context.format {
        Format::Json => output::json(&bag)?,
        Format::Text => {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", outcome(&bag))?;
            out.flush()?;
        }
    }
    Ok(ExitCode::from(code(bag.state)))
}

fn follow(context: &Context, id: &str, view: View) -> anyhow::Result<Bag> {
    let mut client = context.client()?;
    let mut bag = client.bag(id)?.bag;
    let mut shown = None;
    let mut wait = LOOK_MIN;
    loop {
        // Not the printed line itself: its times change with every look.
        let seen = Some((bag.state, bag.done, bag.failed, bag.placed, bag.machines, bag.safe_to_switch_off));
        if view.redraws() {
            // No wrapping: a line that is too long is cut, not scrolled.
            view.write(&format!("{CLEAR}\x1b[?7l{} {}\x1b[?7h", bar(&bag), line(&bag)))?;
        } else if seen != shown {
            view.write(&format!("{}\n", line(&bag)))?;
        }
        shown = seen;
        if bag.state.is_closed() {
            break;
        }
        thread::sleep(wait);
        wait = (wait * 3 / 2).min(LOOK_MAX);
        bag = look(context, &mut client, &bag.id)?;
    }
    if view.redraws() {
        view.write(CLEAR)?;
    }
    Ok(bag)
}

/// Asks for the bag, repeatedly while the agent is being restarted.
fn look(context: &Context, client: &mut Client, id: &str) -> Result<Bag, ClientError> {
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

/// From now on Ctrl-C and SIGTERM end the program at once and quietly.
fn quit_on_interrupt(view: View) -> anyhow::Result<()> {
    on_interrupt(move |why| {
        let cleared = if view.redraws() { view.write(CLEAR) } else { Ok(()) };
        // Even if the line could not be cleared.
        match cleared {
            Ok(()) | Err(_) => std::process::exit(why.code().into()),
        }
    })
}

fn code(state: BagState) -> u8 {
    match state {
        BagState::Succeeded => 0,
        BagState::Failed => 3,
        BagState::Cancelled => 4,
        // Not reached: these are not closed.
        BagState::Measuring | BagState::Running => FAILURE,
    }
}

fn bar(bag: &Bag) -> String {
    // A bag has at least one task.
    let cells = |tasks: u64| (u128::from(tasks) * u128::from(BAR_CELLS) / u128::from(bag.tasks.max(1))) as u64;
    let over = cells(bag.done.saturating_add(bag.failed)).min(BAR_CELLS);
    let placed = cells(bag.placed).min(BAR_CELLS - over);
    let part = |mark: &str, count: u64| mark.repeat(count as usize);
    format!("[{}{}{}]", part("#", over), part("-", placed), part(" ", BAR_CELLS - over - placed))
}

fn line(bag: &Bag) -> String {
    let mut parts = vec![format!("{}/{} done", bag.done, bag.tasks)];
    if bag.failed > 0 {
        parts.push(format!("{} failed", bag.failed));
    }
    match bag.state {
        BagState::Measuring => parts.push("measuring the first task".to_owned()),
        BagState::Running => {
            parts.push(format!("{} placed on {}", bag.placed, output::count(bag.machines, "machine")));
            if let Some(stretch) = bag.stretch {
                parts.push(format!("stretch {} s/Mop", output::number(stretch)));
            }
            if let Some(eta_s) = eta_s(bag) {
                parts.push(format!("about {} to go", output::duration(eta_s)));
            }
            parts.extend(kept::safe(bag));
        }
        BagState::Succeeded | BagState::Failed | BagState::Cancelled => parts.push(output::state(bag.state).to_owned()),
    }
    parts.join(", ")
}

/// Seconds to go at the pace so far.
fn eta_s(bag: &Bag) -> Option<f64> {
    let over = bag.done + bag.failed;
    let left = bag.tasks.saturating_sub(over);
    (over > 0 && left > 0).then(|| bag.elapsed_s / over as f64 * left as f64)
}

fn outcome(bag: &Bag) -> String {
    let id = output::short_id(&bag.id);
    let took = output::duration(bag.elapsed_s);
    match bag.state {
        BagState::Failed => {
            format!("bag {id} failed: {} done, {} failed in {took}; see `idlewood bag show {id}`", bag.done, bag.failed)
        }
        BagState::Cancelled => {
            format!("bag {id} was cancelled: {} of {} done", bag.done, output::count(bag.tasks, "task"))
        }
        BagState::Succeeded | BagState::Measuring | BagState::Running => {
            let stretch =
                bag.stretch.map_or_else(String::new, |stretch| format!(", stretch {} s/Mop", output::number(stretch)));
            format!("bag {id} {}: {} in {took}{stretch}", output::state(bag.state), output::count(bag.done, "task"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bag(state: BagState, tasks: u64, done: u64, failed: u64, placed: u64) -> Bag {
        let any = serde_json::from_str(include_str!("../../tests/fixtures/bag.json")).expect("it is a bag");
        Bag { state, tasks, done, failed, placed, ..any }
    }

    #[test]
    fn lines_say_what_matters() {
        assert_eq!(line(&bag(BagState::Measuring, 8, 0, 0, 0)), "0/8 done, measuring the first task");
        assert_eq!(
            line(&bag(BagState::Running, 8, 1, 1, 4)),
            "1/8 done, 1 failed, 4 placed on 3 machines, stretch 0.125 s/Mop, about 30s to go"
        );
        assert_eq!(line(&bag(BagState::Cancelled, 8, 1, 0, 0)), "1/8 done, cancelled");
        assert!(outcome(&bag(BagState::Failed, 8, 7, 1, 0)).contains("bag show 0123456789ab"));
    }

    #[test]
    fn the_bar_never_overflows() {
        assert_eq!(bar(&bag(BagState::Running, 4, 1, 1, 1)), "[##########-----     ]");
        assert_eq!(bar(&bag(BagState::Running, 4, 4, 4, 4)), "[####################]");
        assert_eq!(bar(&bag(BagState::Running, u64::MAX, u64::MAX, u64::MAX, u64::MAX)).len(), 22);
    }

    #[test]
    fn the_exit_code_says_how_it_ended() {
        assert_eq!([BagState::Succeeded, BagState::Failed, BagState::Cancelled].map(code), [0, 3, 4]);
    }
}

//! Idle time of Wayland compositors that have ext-idle-notify-v1: those on wlroots, KWin, cosmic and others.
//!
//! The compositor notifies when a seat has had no input for a second, and when there is input again. The agent reads
//! the notices when it is polled. If the compositor can, idle inhibitors (a film that plays) do not count as input.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wayland_client::globals::{GlobalListContents, registry_queue_init};
use wayland_client::protocol::{wl_registry, wl_seat};
use wayland_client::{Connection, Dispatch, EventQueue, Proxy as _, QueueHandle, delegate_noop};
use wayland_protocols::ext::idle_notify::v1::client::ext_idle_notification_v1::{self, ExtIdleNotificationV1};
use wayland_protocols::ext::idle_notify::v1::client::ext_idle_notifier_v1::ExtIdleNotifierV1;

use super::sensed::{Sensed, Unavailable};

/// Silence after which the compositor calls a seat idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The compositor of this user's session, once found.
#[derive(Debug)]
pub struct Wayland {
    sockets: Vec<PathBuf>,
    session: Option<Session>,
}

#[derive(Debug)]
struct Session {
    queue: EventQueue<Seats>,
    seats: Seats,
}

/// When each seat became idle; `None` while it is not.
#[derive(Debug, Default)]
struct Seats {
    idle_since: Vec<Option<Instant>>,
    /// When a seat was last known to have input.
    input: Option<Instant>,
}

impl Seats {
    fn handle(&mut self, seat: usize, event: &ext_idle_notification_v1::Event, now: Instant) {
        let Some(idle_since) = self.idle_since.get_mut(seat) else { return };
        match event {
            ext_idle_notification_v1::Event::Idled => *idle_since = Some(now.checked_sub(IDLE_AFTER).unwrap_or(now)),
            ext_idle_notification_v1::Event::Resumed => {
                *idle_since = None;
                self.input = Some(now);
            }
            _ => {}
        }
    }

    fn idle(&self, now: Instant) -> Duration {
        let last = self.idle_since.iter().map(|since| since.unwrap_or(now)).chain(self.input).max();
        now.saturating_duration_since(last.unwrap_or(now))
    }
}

impl Dispatch<ExtIdleNotificationV1, usize> for Seats {
    fn event(
        seats: &mut Self,
        _: &ExtIdleNotificationV1,
        event: ext_idle_notification_v1::Event,
        seat: &usize,
        _: &Connection,
        _: &QueueHandle<Self>,
    ) {
        seats.handle(*seat, &event, Instant::now());
    }
}

impl Dispatch<wl_registry::WlRegistry, GlobalListContents> for Seats {
    fn event(
        _: &mut Self,
        _: &wl_registry::WlRegistry,
        _: wl_registry::Event,
        _: &GlobalListContents,
        _: &Connection,
        _: &QueueHandle<Self>,
    ) {
        // Seats added later belong to other users of the same machine, which is rare; the next start sees them.
    }
}

delegate_noop!(Seats: ignore wl_seat::WlSeat);
delegate_noop!(Seats: ignore ExtIdleNotifierV1);

impl Default for Wayland {
    fn default() -> Self {
        let named = std::env::var_os("WAYLAND_DISPLAY").map(PathBuf::from);
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        Self::new(named, runtime.as_deref())
    }
}

impl Wayland {
    pub(crate) fn new(named: Option<PathBuf>, runtime: Option<&Path>) -> Self {
        let sockets = match (named, runtime) {
            (Some(named), _) if named.is_absolute() => vec![named],
            (Some(named), Some(runtime)) => vec![runtime.join(named)],
            (_, None) => Vec::new(),
            (None, Some(runtime)) => (0..4).map(|number| runtime.join(format!("wayland-{number}"))).collect(),
        };
        Self { sockets, session: None }
    }

    /// Time since the last input on any seat, within a second. Blocks.
    pub(crate) fn idle(&mut self) -> Sensed {
        if self.session.is_none() {
            let socket = self.sockets.iter().find_map(|path| UnixStream::connect(path).ok());
            let socket = socket.ok_or_else(|| Unavailable::absent("there is no Wayland compositor in this session"))?;
            self.session = Some(Session::open(socket)?);
        }
        let Some(session) = &mut self.session else { return Err(Unavailable::absent("there is no session")) };
        match session.queue.roundtrip(&mut session.seats) {
            Ok(_) => Ok(session.seats.idle(Instant::now())),
            Err(error) => {
                self.session = None;
                Err(Unavailable::absent(format!("the Wayland compositor has gone ({error})")))
            }
        }
    }
}

impl Session {
    fn open(socket: UnixStream) -> Result<Self, Unavailable> {
        let failed = |error: &dyn std::fmt::Display| {
            Unavailable::absent(format!("the Wayland compositor does not speak with this agent ({error})"))
        };
        let connection = Connection::from_socket(socket).map_err(|error| failed(&error))?;
        let (globals, queue) = registry_queue_init::<Seats>(&connection).map_err(|error| failed(&error))?;
        let handle = queue.handle();
        let notifier: ExtIdleNotifierV1 = globals.bind(&handle, 1..=2, ()).map_err(|_| {
            // Not a fault: GNOME has its own interface.
            Unavailable::absent("this compositor has no ext-idle-notify-v1")
        })?;
        let mut seats = Seats::default();
        let registry = globals.registry();
        for global in globals.contents().clone_list() {
            if global.interface != "wl_seat" {
                continue;
            }
            let seat: wl_seat::WlSeat = registry.bind(global.name, 1, &handle, ());
            let number = seats.idle_since.len();
            let millis = IDLE_AFTER.as_millis() as u32;
            if notifier.version() >= 2 {
                notifier.get_input_idle_notification(millis, &seat, &handle, number);
            } else {
                notifier.get_idle_notification(millis, &seat, &handle, number);
            }
            // The time before is unknown: assume input just now.
            seats.idle_since.push(None);
        }
        if seats.idle_since.is_empty() {
            return Err(Unavailable::absent("the Wayland compositor has no seat"));
        }
        Ok(Self { queue, seats })
    }
}

#[cfg(test)]
mod compositor;
#[cfg(test)]
mod tests;

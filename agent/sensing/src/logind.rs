//! Idle hints of graphical sessions, from systemd-logind.
//!
//! Desktops set the hint only after minutes, and some never do. So it counts only if no display can be watched
//! directly, as for an agent that runs as a system service: then a graphical session without the hint means that the
//! owner is present.

use std::time::Duration;

use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedObjectPath, Proxy};

use super::sensed::{Sensed, Unavailable};

const SERVICE: &str = "org.freedesktop.login1";
/// How long logind may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The connection to logind, once found.
#[derive(Debug, Default)]
pub struct Logind {
    bus: Option<Connection>,
}

/// The state of one session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    kind: String,
    class: String,
    idle_hint: bool,
    /// Microseconds of the wall clock.
    idle_since_us: u64,
}

impl Logind {
    /// Time since the last graphical session became idle; zero while one is not.
    pub(crate) async fn idle(&mut self) -> Sensed {
        let asked = tokio::time::timeout(ANSWER_WAIT, self.sessions()).await;
        let asked = asked.map_err(|_| "logind does not answer".to_owned()).flatten();
        let sessions = asked.map_err(|why| {
            self.bus = None;
            Unavailable::absent(why)
        })?;
        let now_us = u64::try_from(idlewood_units::clock::wall_now().0).unwrap_or(0);
        idle_of(&sessions, now_us).ok_or_else(|| Unavailable::absent("logind knows of no graphical session"))
    }

    async fn sessions(&mut self) -> Result<Vec<Session>, String> {
        let bus = match &self.bus {
            Some(bus) => bus,
            None => {
                let bus = Connection::system().await.map_err(|error| format!("there is no system bus ({error})"))?;
                self.bus.insert(bus)
            }
        };
        read_sessions(bus).await.map_err(|error| format!("there is no logind ({error})"))
    }
}

async fn read_sessions(bus: &Connection) -> zbus::Result<Vec<Session>> {
    let manager = Proxy::new(bus, SERVICE, "/org/freedesktop/login1", "org.freedesktop.login1.Manager").await?;
    let listed: Vec<(String, u32, String, String, OwnedObjectPath)> = manager.call("ListSessions", &()).await?;
    let mut sessions = Vec::with_capacity(listed.len());
    for (.., path) in listed {
        let session: Proxy<'_> = zbus::proxy::Builder::new(bus)
            .destination(SERVICE)
            .path(path)
            .interface("org.freedesktop.login1.Session")
            // Read once: no need to keep it up to date.
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        sessions.push(Session {
            kind: session.get_property("Type").await?,
            class: session.get_property("Class").await?,
            idle_hint: session.get_property("IdleHint").await?,
            idle_since_us: session.get_property("IdleSinceHint").await?,
        });
    }
    Ok(sessions)
}

/// `None` without a graphical session of a user.
fn idle_of(sessions: &[Session], now_us: u64) -> Option<Duration> {
    let graphical = sessions.iter().filter(|session| {
        matches!(session.kind.as_str(), "x11" | "wayland" | "mir") && session.class.starts_with("user")
    });
    let idle = graphical.map(|session| {
        if session.idle_hint {
            Duration::from_micros(now_us.saturating_sub(session.idle_since_us))
        } else {
            Duration::ZERO
        }
    });
    idle.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graphical_session_is_in_use_until_its_desktop_says_otherwise() {
        let session = |kind: &str, class: &str, idle_hint, idle_since_us| Session {
            kind: kind.to_owned(),
            class: class.to_owned(),
            idle_hint,
            idle_since_us,
        };
        let now_us = 100_000_000;
        assert_eq!(idle_of(&[], now_us), None);
        assert_eq!(idle_of(&[session("tty", "user", false, 0), session("x11", "greeter", false, 0)], now_us), None);
        let idle = session("wayland", "user", true, 40_000_000);
        assert_eq!(idle_of(std::slice::from_ref(&idle), now_us), Some(Duration::from_secs(60)));
        let other = session("x11", "user", false, 0);
        assert_eq!(idle_of(&[idle.clone(), other], now_us), Some(Duration::ZERO));
        assert_eq!(idle_of(&[idle], 0), Some(Duration::ZERO), "a clock that was set back");
    }
}

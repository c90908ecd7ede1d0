//! Idle time of a GNOME session: `org.gnome.Mutter.IdleMonitor` on the session bus, on Wayland and X11 alike.

use std::time::Duration;

use zbus::{Connection, Proxy};

use super::sensed::{Sensed, Unavailable};

/// How long the shell may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The idle monitor of the session, once found.
#[derive(Debug, Default)]
pub struct Mutter {
    monitor: Option<Proxy<'static>>,
}

impl Mutter {
    /// Time since the last input.
    pub(crate) async fn idle(&mut self) -> Sensed {
        let sensed = tokio::time::timeout(ANSWER_WAIT, self.ask()).await;
        let result = sensed.unwrap_or_else(|_| Err("GNOME's idle monitor does not answer".to_owned()));
        result.map(Duration::from_millis).map_err(|why| {
            self.monitor = None;
            Unavailable::absent(why)
        })
    }

    async fn ask(&mut self) -> Result<u64, String> {
        let monitor = match &self.monitor {
            Some(monitor) => monitor,
            None => self.monitor.insert(find().await?),
        };
        monitor.call("GetIdletime", &()).await.map_err(|error| format!("there is no GNOME session ({error})"))
    }
}

async fn find() -> Result<Proxy<'static>, String> {
    let bus = Connection::session().await.map_err(|error| format!("there is no session bus ({error})"))?;
    let [service, path] = ["org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core"];
    let monitor = Proxy::new(&bus, service, path, "org.gnome.Mutter.IdleMonitor").await;
    monitor.map_err(|error| format!("there is no GNOME session ({error})"))
}

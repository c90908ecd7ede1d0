//! Idle time of X11 displays, by the screen saver extension (MIT-SCREEN-SAVER), which counts every input device.
//!
//! All local displays are asked, also those of remote desktops (xrdp, VNC): each is an X server of its own on this
//! machine. A display that `ssh -X` forwards is on another machine and not asked. Authorisation is Xlib's: the cookie
//! in `$XAUTHORITY` or `~/.Xauthority`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use x11rb::connection::{Connection as _, RequestConnection as _};
use x11rb::protocol::screensaver::{self, ConnectionExt as _};
use x11rb::rust_connection::RustConnection;

use super::sensed::{Sensed, Unavailable};

/// Sockets of local X servers.
const SOCKETS: &str = "/tmp/.X11-unix";
/// A display with a higher number has no port, and `x11rb` panics over it.
const DISPLAY_MAX: u16 = u16::MAX - 6_000;
/// How often to look for new displays, and for those that could not be opened.
const LOOK_AFTER: Duration = Duration::from_secs(15);

/// The displays of this machine.
#[derive(Debug)]
pub struct X11 {
    sockets: PathBuf,
    /// The value of `DISPLAY`.
    named: Option<String>,
    open: BTreeMap<String, Display>,
    /// Displays that could not be opened, and why.
    closed: BTreeMap<String, String>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Display {
    connection: RustConnection,
    root: u32,
}

impl Default for X11 {
    fn default() -> Self {
        Self::new(SOCKETS.into(), std::env::var("DISPLAY").ok())
    }
}

impl X11 {
    pub(crate) fn new(sockets: PathBuf, named: Option<String>) -> Self {
        Self { sockets, named, open: BTreeMap::new(), closed: BTreeMap::new(), looked: None }
    }

    /// Time since the last input on any display. Blocks.
    pub(crate) fn idle(&mut self) -> Sensed {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AFTER) {
            self.look();
        }
        let mut least: Option<Duration> = None;
        let mut lost = Vec::new();
        for (name, display) in &self.open {
            match display.idle() {
                Ok(idle) => least = Some(least.map_or(idle, |least| least.min(idle))),
                Err(error) => lost.push((name.clone(), error)),
            }
        }
        for (name, error) in lost {
            self.open.remove(&name);
            self.closed.insert(name, error);
            self.looked = None;
        }
        least.ok_or_else(|| match self.closed.iter().next() {
            None => Unavailable::absent("there is no X11 display"),
            Some((name, why)) => Unavailable::new(
                format!("display {name}: {why}"),
                "run the agent as the user of that display, with XAUTHORITY set where the desktop sets it",
            ),
        })
    }

    /// Displays that it watches.
    pub fn displays(&self) -> Vec<&str> {
        self.open.keys().map(String::as_str).collect()
    }

    fn look(&mut self) {
        self.looked = Some(Instant::now());
        self.closed.clear();
        for name in local_displays(&self.sockets, self.named.as_deref()) {
            if self.open.contains_key(&name) {
                continue;
            }
            match Display::open(&name) {
                Ok(display) => {
                    self.open.insert(name, display);
                }
                Err(why) => {
                    self.closed.insert(name, why);
                }
            }
        }
    }
}

/// The display in the environment, if it is a local one, and those with a socket.
fn local_displays(sockets: &Path, named: Option<&str>) -> Vec<String> {
    let number = |name: &str| {
        let digits = name.split('.').next().unwrap_or(name);
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().is_ok_and(|number| is_plain && number <= DISPLAY_MAX).then(|| format!(":{digits}"))
    };
    let named = named.and_then(|name| name.strip_prefix(':').or_else(|| name.strip_prefix("unix:"))).and_then(number);
    let listed = std::fs::read_dir(sockets).into_iter().flatten().flatten();
    let found = listed.filter_map(|entry| number(entry.file_name().to_str()?.strip_prefix('X')?));
    let mut displays: Vec<String> = named.into_iter().chain(found).collect();
    displays.sort_unstable();
    displays.dedup();
    displays
}

impl Display {
    fn open(name: &str) -> Result<Self, String> {
        let (connection, screen) = RustConnection::connect(Some(name)).map_err(|error| error.to_string())?;
        let has =
            connection.extension_information(screensaver::X11_EXTENSION_NAME).map_err(|error| error.to_string())?;
        if has.is_none() {
            return Err("its server has no MIT-SCREEN-SAVER extension".to_owned());
        }
        let root = connection.setup().roots.get(screen).ok_or("it has no screen")?.root;
        Ok(Self { connection, root })
    }

    fn idle(&self) -> Result<Duration, String> {
        let query = self.connection.screensaver_query_info(self.root).map_err(|error| error.to_string())?;
        let info = query.reply().map_err(|error| error.to_string())?;
        Ok(Duration::from_millis(info.ms_since_user_input.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_displays_are_found_and_forwarded_ones_left_alone() {
        let sockets = tempfile::tempdir().expect("a directory");
        for name in ["X0", "X1024", "X65000", "X+1", "X", "Xother", "lock"] {
            std::fs::write(sockets.path().join(name), "").expect("a file");
        }
        let found = |named| local_displays(sockets.path(), named);
        assert_eq!(found(None), [":0", ":1024"]);
        assert_eq!(found(Some(":7.0")), [":0", ":1024", ":7"]);
        assert_eq!(found(Some("unix:0.1")), [":0", ":1024"]);
        assert_eq!(found(Some("localhost:10.0")), [":0", ":1024"], "of another machine");
        assert_eq!(local_displays(Path::new("/nowhere"), Some("")), Vec::<String>::new());
    }

    #[test]
    fn without_a_display_it_says_so() {
        let mut x11 = X11::new("/nowhere".into(), None);
        assert_eq!(x11.idle(), Err(Unavailable::absent("there is no X11 display")));
        // A socket file without a server.
        let mut x11 = X11::new("/nowhere".into(), Some(":59000".to_owned()));
        let unavailable = x11.idle().expect_err("there is no such display");
        assert!(unavailable.why.starts_with("display :59000: ") && !unavailable.remedy.is_empty(), "{unavailable:?}");
    }
}

//! The owner's pause, on disk: it outlives the agent and the machine's restart. By the wall clock, as nothing else
//! goes on meanwhile.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use idlewood_machine::policy::Pause;
use idlewood_overlay::{Time, WallTime};

/// Where it is kept.
#[derive(Clone, Debug)]
pub(super) struct PauseFile(PathBuf);

impl PauseFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The pause that was in force, unless it is over.
    pub(super) fn load(&self, now: Time, wall: WallTime) -> Option<Pause> {
        let text = fs::read_to_string(&self.0).ok()?;
        // A file that holds no number of microseconds is a pause without an end: better too long than none.
        let Ok(until) = text.trim().parse::<i64>() else { return Some(Pause { until: None }) };
        let left = u64::try_from(until.saturating_sub(wall.0)).ok().filter(|left| *left > 0)?;
        Some(Pause { until: Some(now + Duration::from_micros(left)) })
    }

    /// Keeps the pause, or that there is none. A pause that cannot be kept holds until the agent ends.
    pub(super) fn save(&self, pause: Option<Pause>, now: Time, wall: WallTime) {
        let saved = match pause {
            None => match fs::remove_file(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
            Some(Pause { until }) => {
                let left = until.map(|until| i64::try_from(until.since(now).as_micros()).unwrap_or(i64::MAX));
                let text = left.map_or_else(|| "forever".to_owned(), |left| wall.0.saturating_add(left).to_string());
                fs::File::create(&self.0).and_then(|mut file| {
                    writeln!(file, "{text}")?;
                    file.sync_all()
                })
            }
        };
        if let Err(error) = saved {
            tracing::warn!(%error, path = %self.0.display(), "the pause holds until the agent ends only");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_outlives_the_agent_and_no_longer_than_it_should() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = PauseFile::new(directory.path().join("pause"));
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let wall = |seconds: i64| WallTime(1_700_000_000_000_000 + seconds * 1_000_000);
        assert_eq!(file.load(at(0), wall(0)), None);
        file.save(Some(Pause { until: Some(at(100)) }), at(40), wall(0));
        // Another run, whose clock starts anew.
        assert_eq!(file.load(at(3), wall(20)), Some(Pause { until: Some(at(43)) }));
        assert_eq!(file.load(at(3), wall(60)), None, "it is over");
        file.save(Some(Pause { until: None }), at(40), wall(0));
        assert_eq!(file.load(at(3), wall(1_000_000)), Some(Pause { until: None }));
        file.save(None, at(40), wall(0));
        file.save(None, at(40), wall(0));
        assert_eq!(file.load(at(3), wall(0)), None);
    }
}

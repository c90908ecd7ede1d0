//! The agent as a service: where the machine's keeps what, and the files that make it one.

use std::env;
use std::path::{Path, PathBuf};

/// State directory of the machine's service, which systemd makes.
pub(crate) const STATE_DIR: &str = "/var/lib/idlewood";
/// Its settings.
pub(crate) const CONFIG: &str = "/etc/idlewood/config.toml";
/// Its unit, with the program where a package puts it.
pub(crate) const UNIT: &str = include_str!("../idlewood.service");
/// The unit of a desktop session.
pub(crate) const SESSION_UNIT: &str = include_str!("../packaging/session.service");
/// Its user, for systemd-sysusers.
pub(crate) const USER: &str = include_str!("../packaging/sysusers.conf");
/// Its settings before anybody has changed them.
pub(crate) const FIRST_CONFIG: &str = include_str!("../packaging/config.toml");

/// The program of the units above.
const PROGRAM: &str = "/usr/bin/idlewood";

/// State directory and settings of the machine's service, for root on a machine that has one: who administers it need not name them.
pub(crate) fn of_this_machine() -> Option<(PathBuf, PathBuf)> {
    let is_administered = rustix::process::geteuid().is_root() && Path::new(STATE_DIR).is_dir();
    is_administered.then(|| (STATE_DIR.into(), CONFIG.into()))
}

/// The usual state directory: what the environment says, for root that of the machine's service if there is one, or the user's; `None`
/// without a home directory.
pub(crate) fn default_state_dir() -> Option<PathBuf> {
    // The XDG specification ignores relative paths.
    let base = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let chosen = base("XDG_STATE_HOME").map(|base| base.join("idlewood"));
    chosen
        .or_else(|| of_this_machine().map(|(state_dir, _)| state_dir))
        .or_else(|| base("HOME").map(|home| home.join(".local/state/idlewood")))
}

/// A unit that starts this program, with these words after it.
///
/// # Errors
/// A sentence, where systemd would take the path for something else, or the machine's service would not see it.
pub(crate) fn unit_for(unit: &str, program: &Path, words: &str) -> Result<String, String> {
    let text = plain(program)?;
    let hidden = ["/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"];
    if unit == UNIT && hidden.iter().any(|place| text.starts_with(place)) {
        let copy = format!(
            "sudo install -m 755 {text} /usr/local/bin/idlewood && sudo /usr/local/bin/idlewood service install"
        );
        return Err(format!("the service has a user of its own, which does not see {text}: {copy}"));
    }
    Ok(unit.replace(&format!("ExecStart={PROGRAM} run"), &format!("ExecStart={text} run{words}")))
}

/// The text of a path that means the same to systemd as to us.
///
/// # Errors
/// A sentence, where it would be taken for something else.
pub(crate) fn plain(path: &Path) -> Result<&str, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let text = path.to_str().filter(|text| path.is_absolute() && text.chars().all(is_plain));
    text.ok_or_else(|| {
        format!("systemd cannot be told of {}: choose a path of letters, digits and /._-+ alone", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_start_the_program_that_installed_them() {
        let unit = unit_for(UNIT, Path::new("/usr/local/bin/idlewood"), "").expect("a plain path");
        assert!(
            unit.contains("\nExecStart=/usr/local/bin/idlewood run\n") && unit.contains("\nUser=idlewood\n"),
            "{unit}"
        );
        let session =
            unit_for(SESSION_UNIT, Path::new("/home/ada/bin/idlewood"), " --slots 2").expect("the user's own");
        assert!(session.contains("\nExecStart=/home/ada/bin/idlewood run --slots 2\n"), "{session}");
        assert!(!session.contains("User="), "a session has one");
        for (path, says) in [
            ("/home/ada/idlewood", "does not see"),
            ("/opt/with space/idlewood", "choose a path"),
            ("/opt/%h/idlewood", "choose a path"),
            ("idlewood", "choose a path"),
        ] {
            let refusal = unit_for(UNIT, Path::new(path), "").expect_err(path);
            assert!(refusal.contains(says), "{path}: {refusal}");
        }
    }

    #[test]
    fn the_settings_of_the_first_start_are_settings() {
        let settings: crate::settings::Settings = toml::from_str(FIRST_CONFIG).expect("they can be read");
        assert_eq!(settings, crate::settings::Settings::default());
    }
}

//! Detecting running programs: by `/proc/PID/comm`, and for names longer than the kernel keeps, by the program's file.

use std::fs;
use std::path::Path;

/// The kernel keeps this many bytes of a name.
const COMM_BYTES: usize = 15;

/// The first of `names` that runs.
pub fn running<'a>(proc: &Path, names: &'a [String]) -> Option<&'a str> {
    if names.is_empty() {
        return None;
    }
    let pids = fs::read_dir(proc).into_iter().flatten().flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let mut found: Vec<&str> = pids.filter_map(|entry| named(&entry.path(), names)).collect();
    found.sort_unstable_by_key(|found| names.iter().position(|name| name == found));
    found.first().copied()
}

/// The name, of these, that this process has.
fn named<'a>(process: &Path, names: &'a [String]) -> Option<&'a str> {
    let comm = fs::read_to_string(process.join("comm")).ok()?;
    let comm = comm.trim_end_matches('\n');
    let name = names.iter().find(|name| {
        if name.len() <= COMM_BYTES {
            return name.as_str() == comm;
        }
        // The kernel may cut within a character; then the file's name decides.
        name.as_bytes().starts_with(comm.as_bytes())
            && comm.len() + 3 >= COMM_BYTES
            && fs::read_link(process.join("exe"))
                .is_ok_and(|exe| exe.file_name().is_some_and(|file| file == name.as_str()))
    });
    name.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_names() {
        let proc = tempfile::tempdir().expect("a directory");
        let process = |pid: &str, comm: &str, exe: &str| {
            let directory = proc.path().join(pid);
            fs::create_dir(&directory).expect("a directory");
            fs::write(directory.join("comm"), format!("{comm}\n")).expect("a file");
            std::os::unix::fs::symlink(exe, directory.join("exe")).expect("a link");
        };
        process("1", "systemd", "/usr/lib/systemd/systemd");
        process("700", "steam", "/usr/bin/steam");
        process("701", "simplescreenrec", "/usr/bin/simplescreenrecorder");
        process("self", "obs", "/usr/bin/obs");
        let running = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            super::running(proc.path(), &names).map(str::to_owned)
        };
        assert_eq!(running(&[]), None);
        assert_eq!(running(&["obs", "stea", "steamwebhelper"]), None);
        assert_eq!(running(&["obs", "steam", "systemd"]).as_deref(), Some("steam"), "the first of those named");
        assert_eq!(running(&["simplescreenrecorder"]).as_deref(), Some("simplescreenrecorder"));
        assert_eq!(running(&["simplescreenrecording"]), None, "another program with the same beginning");
    }
}

//! A task's inputs, laid out by the agent so that its worker can read but not change them.
//!
//! They are hard links to the blobs: a link costs nothing whatever the size. Executable ones are copies, since rights belong to the file. But a process that can write to the link's
//! directory can write to the blob, so workers must only read that directory ([`super::Reach::readable`]).

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A file that a task may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name under `inputs/`: a relative path without `.` and `..`.
    pub name: String,
    /// The host file with the content.
    pub path: PathBuf,
    /// Whether native programs can execute it.
    pub executable: bool,
}

/// Why inputs were not laid out. Some of them may be.
#[derive(Debug, thiserror::Error)]
pub enum LayOutError {
    /// An input's name leads elsewhere.
    #[error("input name {name:?} is not allowed: give a relative path without \".\", \"..\" and empty parts")]
    Name {
        /// The name.
        name: String,
    },
    /// Two inputs would be the same file, or one a directory of the other.
    #[error("two inputs are named {name:?}, or one lies inside the other: give each its own name")]
    Twice {
        /// The name.
        name: String,
    },
    /// The disk refuses.
    #[error("cannot provide the input {}: {source}", path.display())]
    Io {
        /// The host file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Makes a directory with the inputs under their names. Blocks.
///
/// # Errors
/// [`LayOutError`].
pub fn lay_out(directory: &Path, inputs: &[Input]) -> Result<(), LayOutError> {
    check(inputs)?;
    for Input { name, path, executable } in inputs {
        let place = directory.join(name);
        let made = place.parent().map_or(Ok(()), fs::create_dir_all);
        // Another file system, or one without links: copy.
        let link = |()| match executable {
            true => copy_executable(path, &place),
            false => fs::hard_link(path, &place).or_else(|_| fs::copy(path, &place).map(drop)),
        };
        made.and_then(link).map_err(|source| LayOutError::Io { path: path.clone(), source })?;
    }
    Ok(())
}

/// Makes empty folders beside them. Blocks.
///
/// # Errors
/// [`LayOutError`].
pub fn lay_out_folders(directory: &Path, folders: &[String]) -> Result<(), LayOutError> {
    for folder in folders {
        check_name(folder)?;
        let path = directory.join(folder);
        fs::create_dir_all(&path).map_err(|source| LayOutError::Io { path, source })?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), LayOutError> {
    let good_part = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= 255;
    if !name.split('/').all(good_part) || name.contains('\0') {
        return Err(LayOutError::Name { name: name.to_owned() });
    }
    Ok(())
}

fn copy_executable(path: &Path, place: &Path) -> io::Result<()> {
    fs::copy(path, place)?;
    fs::set_permissions(place, Permissions::from_mode(0o500))
}

fn check(inputs: &[Input]) -> Result<(), LayOutError> {
    let mut names: Vec<&str> = Vec::with_capacity(inputs.len());
    for input in inputs {
        check_name(&input.name)?;
        names.push(&input.name);
    }
    names.sort_unstable_by(|a, b| Path::new(a).cmp(Path::new(b)));
    match names.windows(2).find(|pair| Path::new(pair[1]).starts_with(pair[0])) {
        Some(pair) => Err(LayOutError::Twice { name: pair[0].to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Result<(), LayOutError> {
        let input = |name: &&str| Input { name: (*name).to_owned(), path: PathBuf::from("/blob"), executable: false };
        check(&names.iter().map(input).collect::<Vec<_>>())
    }

    #[test]
    fn input_names_stay_inside() {
        for good in ["a", "a/b", "a b", "..a", "a..", ".hidden"] {
            named(&[good]).expect(good);
        }
        for bad in ["", ".", "..", "/a", "a/", "a//b", "a/../b", "../a", "a/..", "./a", "a\0b", &"x".repeat(256)] {
            assert!(matches!(named(&[bad]), Err(LayOutError::Name { name }) if name == bad));
        }
    }

    /// What a hostile submitter names never leaves the directory, also if the manifest that names it was not checked.
    #[test]
    fn nothing_is_laid_out_outside_of_the_directory() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let blob = root.path().join("blob");
        fs::write(&blob, "content").expect("our directory");
        let directory = root.path().join("in");
        let before = fs::read_dir(root.path()).expect("ours").count();
        for name in ["../out", "a/../../out", "/tmp/idlewood-out", "a/./b", ".."] {
            for executable in [false, true] {
                let input = Input { name: name.to_owned(), path: blob.clone(), executable };
                let fine = Input { name: "fine".to_owned(), path: blob.clone(), executable };
                let refused = lay_out(&directory, &[fine, input]);
                assert!(matches!(refused, Err(LayOutError::Name { .. })), "{name}");
            }
        }
        assert_eq!(fs::read_dir(root.path()).expect("ours").count(), before, "nothing was made");
        assert!(!Path::new("/tmp/idlewood-out").exists());
    }

    #[test]
    fn folders_are_laid_out_and_rights_of_blobs_stay() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let blob = root.path().join("blob");
        fs::write(&blob, "content").expect("our directory");
        fs::set_permissions(&blob, Permissions::from_mode(0o400)).expect("ours");
        let input = |name: &str, executable| Input { name: name.to_owned(), path: blob.clone(), executable };
        let directory = root.path().join("in");
        lay_out(&directory, &[input("tools/deep/run", true), input("tools/data", false)]).expect("there is room");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(fs::read(directory.join("tools/deep/run")).expect("readable"), b"content");
        assert_eq!(
            [mode(&directory.join("tools/deep/run")), mode(&directory.join("tools/data")), mode(&blob)],
            [0o500, 0o400, 0o400]
        );
    }

    #[test]
    fn inputs_do_not_collide() {
        named(&["a", "a.b", "ab", "b/a"]).expect("they are different");
        for bad in [&["a", "a"][..], &["a", "a.b", "a/b"], &["x/y/z", "q", "x/y"]] {
            assert!(matches!(named(bad), Err(LayOutError::Twice { .. })), "{bad:?}");
        }
    }
}

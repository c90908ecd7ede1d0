//! What tasks keep in `checkpoint/`: a directory for each task, not for each attempt, so that it outlives freezing, the
//! worker, and the agent.
//!
//! The worker makes it when a task can get at it, and holds a lock on it while the task runs (`worker/child`). It goes
//! when the task is over, and when this machine no longer holds the task.
//!
//! A task that goes to another machine takes it along: packed as an output that has nothing but files, it is a blob that
//! the submitter fetches like a result, signs for that task, and names in its requests, and the next machine fetches like an
//! input, where it is laid out before the task begins if the signature is that of the bag's submitter. `docs/adr/0014` says
//! who goes and who stays, `docs/adr/0018` why it is signed.
//!
//! A checkpoint with links in it, or files with several names, could not be put together again elsewhere: its task stays
//! with it on this machine. So does that of a machine that crashed: only what is handed back travels.
//!
//! Left out: directories without files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use idlewood_blobs::Blobs;
use idlewood_scheduler::ranges::IntervalSet;
use idlewood_scheduler::{BagId, BlobId, Checkpoint, TaskId};
use idlewood_trust::manifest::TaskOutput;
use idlewood_trust::{CHECKPOINT_ADDED_BYTES, Gate};
use idlewood_units::FILES_MAX;
use idlewood_worker::removal;
use idlewood_worker::untrusted::{Contents, DEPTH_MAX, Room, UntrustedDir};
use serde_bytes::ByteBuf;

use super::pin::Pin;

/// Most tasks of a bag of which checkpoints are looked for. Far more than a machine has begun.
const TASKS_MAX: usize = 1 << 16;

/// The directory with a bag's, which workers write to.
pub(super) fn of_bag(parent: &Path, bag: BagId) -> PathBuf {
    parent.join(hex::encode(bag.0))
}

/// The checkpoint directory of a task.
pub(super) fn path(parent: &Path, task: TaskId) -> PathBuf {
    of_bag(parent, task.bag).join(task.index.to_string())
}

/// Removes the checkpoints of tasks that are not `held` here. The directories of bags that are `in_use` stay. Blocks.
///
/// # Errors
/// When a directory cannot be read or removed; the others are.
pub(super) fn sweep(parent: &Path, held: &BTreeMap<BagId, IntervalSet>, in_use: &BTreeSet<BagId>) -> io::Result<()> {
    let bags = match fs::read_dir(parent) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        bags => bags?,
    };
    let mut result = Ok(());
    for bag in bags {
        let bag = bag?.path();
        let id = id_of(&bag);
        let held = id.and_then(|id| held.get(&id));
        // Whatever is wrong with one, the others go.
        result = result.and(sweep_bag(&bag, held));
        if held.is_none() && !id.is_some_and(|id| in_use.contains(&id)) {
            match fs::remove_dir(&bag) {
                // Not while something is left in it; and what workers have put in its place stays out of their way.
                Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory) => {}
                removed => result = result.and(removed),
            }
        }
    }
    result
}

/// The same for one bag, of whose tasks these are held.
fn sweep_bag(bag: &Path, held: Option<&IntervalSet>) -> io::Result<()> {
    let Some(directory) = UntrustedDir::open(bag)? else { return Ok(()) };
    let mut result = Ok(());
    for name in directory.names()? {
        let name = name?;
        let index = index_of(&name);
        if !index.is_some_and(|index| held.is_some_and(|held| held.contains(index))) {
            result = result.and(remove(&bag.join(name)));
        }
    }
    result
}

/// Removes the checkpoint of a task that is over, if it has one. Blocks.
///
/// # Errors
/// When it cannot be removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match UntrustedDir::open(path) {
        // A worker has it: for a task that has just come back, or it is about to die.
        Ok(Some(directory)) if !directory.lock()? => Ok(()),
        Ok(_) => removal::remove(path),
        // Its task has taken away the rights to it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => removal::remove(path),
        Err(error) => Err(error),
    }
}

/// The tasks that have one, by bag. Blocks.
///
/// # Errors
/// When a directory cannot be read.
pub(super) fn found(parent: &Path) -> io::Result<BTreeMap<BagId, IntervalSet>> {
    let mut found = BTreeMap::new();
    let Some(bags) = UntrustedDir::open(parent)? else { return Ok(found) };
    for bag in bags.names()? {
        let bag = parent.join(bag?);
        let Some(id) = id_of(&bag) else { continue };
        found.insert(id, indices(&bag)?.into_iter().map(|index| index..index + 1).collect());
    }
    Ok(found)
}

/// The tasks that have something in a bag's directory, which workers write to: as many as are ever looked at.
fn indices(bag: &Path) -> io::Result<BTreeSet<u64>> {
    let Some(directory) = UntrustedDir::open(bag)? else { return Ok(BTreeSet::new()) };
    let indices = directory.names()?.filter_map(|name| name.map(|name| index_of(&name)).transpose());
    indices.take(TASKS_MAX).collect()
}

/// What is kept of each task that has a checkpoint, durable and pinned; `None`: it stays on this machine.
pub(super) type Kept = BTreeMap<u64, Option<(Checkpoint, Pin)>>;

/// Packs the checkpoints of these tasks of a bag. Blocks.
pub(super) fn keep(
    parent: &Path,
    bag: BagId,
    tasks: &IntervalSet,
    blobs: &Arc<Blobs>,
    bytes_max: u64,
) -> io::Result<Kept> {
    let path_of = |index| path(parent, TaskId { bag, index });
    let mut kept = Kept::new();
    for index in indices(&of_bag(parent, bag))?.into_iter().filter(|index| tasks.contains(*index)) {
        match pack(&path_of(index), bytes_max).and_then(|packed| packed.map(|bytes| store(blobs, &bytes)).transpose()) {
            Ok(Some(checkpoint)) => drop(kept.insert(index, Some(checkpoint))),
            // Nothing is in it.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%bag, index, error = format!("{error:#}"), "a task stays here with its checkpoint");
                kept.insert(index, None);
            }
        }
    }
    Ok(kept)
}

/// Keeps a signed blob, durable and pinned. Blocks.
///
/// # Errors
/// There is no room for it.
pub(super) fn store(blobs: &Arc<Blobs>, bytes: &[u8]) -> anyhow::Result<(Checkpoint, Pin)> {
    let hash = blake3::hash(bytes);
    let pin = Pin::new(blobs, hash);
    blobs.put_durable(bytes)?;
    Ok((Checkpoint { blob: BlobId(*hash.as_bytes()), bytes: bytes.len() as u64 }, pin))
}

/// A checkpoint as one blob; `None` where it has no files.
fn pack(path: &Path, bytes_max: u64) -> anyhow::Result<Option<Vec<u8>>> {
    let limit = bytes_max >> 20;
    let too_large = || format!("it is over {limit} MiB (limits.checkpoint)");
    let Some(left) = UntrustedDir::open(path)? else { return Ok(None) };
    let Contents { files, left_out, .. } = left.read_all(&mut Room::new(bytes_max, too_large()), |_| true)?;
    if let Some(path) = left_out.first() {
        anyhow::bail!("{path:?} is a link, has another name or lies too deep");
    }
    if files.is_empty() {
        return Ok(None);
    }
    let files = files.into_iter().map(|(name, bytes)| (name, ByteBuf::from(bytes))).collect();
    let bytes = TaskOutput { files, ..TaskOutput::default() }.encode();
    anyhow::ensure!(bytes.len() as u64 <= bytes_max, too_large());
    Ok(Some(bytes))
}

/// Keeps a checkpoint that came back, durable, pinned and signed for its task by this machine: what requests name. Blocks.
///
/// # Errors
/// When it cannot be read, or there is no room for it.
pub(super) fn sign(path: &Path, task: TaskId, gate: &Gate, blobs: &Arc<Blobs>) -> anyhow::Result<(Checkpoint, Pin)> {
    let mut bytes = vec![0; CHECKPOINT_ADDED_BYTES];
    fs::File::open(path)?.read_to_end(&mut bytes)?;
    let (signature, packed) = bytes.split_at_mut(CHECKPOINT_ADDED_BYTES);
    signature.copy_from_slice(&gate.sign_checkpoint(&task.bag.0, task.index, packed));
    store(blobs, &bytes)
}

/// Makes a task's checkpoint of what another machine has packed: all of it or nothing. It is put together in a new
/// directory in `aside`, which must be out of workers' reach, so that nothing of theirs lies in the way. Blocks.
///
/// # Errors
/// It is none, or cannot be written.
pub(super) fn lay_out(path: &Path, packed: &[u8], aside: &Path) -> anyhow::Result<()> {
    let files = TaskOutput::decode(packed).context("not a checkpoint")?.files;
    lay_out_files(path, &files, aside)
}

/// The same of files that were unpacked. Blocks.
pub(super) fn lay_out_files(path: &Path, files: &BTreeMap<String, ByteBuf>, aside: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(files.len() <= FILES_MAX && files.keys().all(|name| is_inside(name)), "not a checkpoint");
    let aside = tempfile::tempdir_in(aside)?;
    let new = aside.path().join("checkpoint");
    fs::create_dir(&new)?;
    write_all(&new, files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())))?;
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    Ok(fs::rename(&new, path)?)
}

/// Whether a path from another machine leads to a file inside, and not too deep.
pub(super) fn is_inside(name: &str) -> bool {
    let parts = Path::new(name).components();
    !name.is_empty()
        && parts.clone().count() <= DEPTH_MAX + 1
        && parts.clone().all(|part| matches!(part, Component::Normal(_)))
}

/// Writes files, whose names are all inside, into a directory of ours. Blocks.
pub(super) fn write_all<'a>(directory: &Path, files: impl Iterator<Item = (&'a str, &'a [u8])>) -> anyhow::Result<()> {
    for (name, bytes) in files {
        let file = directory.join(name);
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, bytes)?;
    }
    Ok(())
}

fn index_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

fn id_of(path: &Path) -> Option<BagId> {
    let mut id = [0; 32];
    hex::decode_to_slice(path.file_name()?.to_str()?, &mut id).ok()?;
    Some(BagId(id))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_checkpoint_packed_here_is_laid_out_elsewhere() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let blobs = Arc::new(Blobs::open(&parent.path().join("blobs"), 1 << 20).expect("an empty directory"));
        let bag = BagId([1; 32]);
        let at = |index| path(parent.path(), TaskId { bag, index });
        for index in [0, 3, 4, 5, 6] {
            fs::create_dir_all(at(index).join("deep")).expect("our directory");
        }
        for (index, bytes) in [(3, 3000), (4, 4000), (5, 10), (6, 10)] {
            fs::write(at(index).join("deep/progress"), vec![b'x'; bytes]).expect("our directory");
        }
        symlink("/etc/passwd", at(5).join("link")).expect("our directory");
        let tasks: IntervalSet = [0..1, 3..7].into_iter().collect();
        assert_eq!(found(parent.path()).expect("our directory"), BTreeMap::from([(bag, tasks)]));

        let kept = keep(parent.path(), bag, &IntervalSet::from(0..6), &blobs, 3500).expect("our directory");
        let travels = kept.iter().map(|(index, kept)| (*index, kept.is_some())).collect::<Vec<_>>();
        assert_eq!(
            travels,
            [(3, true), (4, false), (5, false)],
            "too large, with a link; one empty, one not asked for"
        );
        let (checkpoint, _pin) = kept[&3].as_ref().expect("it travels");
        let packed = blobs.path(checkpoint.blob.0.into()).expect("it can be read").expect("it is kept");
        let packed = fs::read(packed).expect("it is there");
        assert_eq!(packed.len() as u64, checkpoint.bytes);

        let aside = tempfile::tempdir().expect("a temporary directory");
        lay_out(&at(9), &packed, aside.path()).expect("there is room");
        assert_eq!(fs::read(at(9).join("deep/progress")).expect("it is there").len(), 3000);
        assert_eq!(fs::read_dir(at(9)).expect("our directory").count(), 1, "nothing of an earlier try");
        assert_eq!(fs::read_dir(aside.path()).expect("our directory").count(), 0);
        // Whatever a worker has put there is neither written through nor taken for it.
        let elsewhere = tempfile::tempdir().expect("a temporary directory");
        symlink(elsewhere.path(), at(10)).expect("our directory");
        symlink(elsewhere.path(), at(10).with_extension("new")).expect("our directory");
        lay_out(&at(10), &packed, aside.path()).expect_err("there is something already");
        assert_eq!(fs::read_dir(elsewhere.path()).expect("our directory").count(), 0);
    }

    #[test]
    fn packed_bytes_that_are_no_checkpoint_are_not_laid_out() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let path = parent.path().join("bag/1");
        let packed = |name: &str| {
            let files = BTreeMap::from([(name.to_owned(), serde_bytes::ByteBuf::from(b"x".to_vec()))]);
            TaskOutput { files, ..TaskOutput::default() }.encode()
        };
        for name in ["../out", "/out", "a/../../out", "", "./a", &"d/".repeat(DEPTH_MAX + 2)] {
            lay_out(&path, &packed(name), parent.path()).expect_err(name);
        }
        lay_out(&path, b"nonsense", parent.path()).expect_err("not even an output");
        assert!(!parent.path().join("bag").exists());
        lay_out(&path, &packed("a/b"), parent.path()).expect("it is one");
    }

    #[test]
    fn only_what_is_held_is_kept_and_nothing_is_taken_from_a_worker() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let task = |bag: u8, index: u64| of_bag(parent.path(), BagId([bag; 32])).join(index.to_string());
        for (bag, index) in [(1, 3), (1, 4), (2, 0), (3, 0)] {
            fs::create_dir_all(task(bag, index)).expect("our directory");
            fs::write(task(bag, index).join("progress"), b"x").expect("our directory");
        }
        let held = BTreeMap::from([(BagId([1; 32]), IntervalSet::from(4..9))]);
        let worker = UntrustedDir::open(&task(3, 0)).expect("readable").expect("it is there");
        assert!(worker.lock().expect("nobody has it"));
        sweep(parent.path(), &held, &BTreeSet::from([BagId([2; 32])])).expect("our directory");
        let there = [(1, 3), (1, 4), (2, 0), (3, 0)].map(|(bag, index)| task(bag, index).exists());
        assert_eq!(there, [false, true, false, true]);
        assert!(task(2, 0).parent().is_some_and(Path::exists), "a worker may have it open");
        drop(worker);
        sweep(parent.path(), &BTreeMap::new(), &BTreeSet::new()).expect("our directory");
        assert_eq!(fs::read_dir(parent.path()).expect("our directory").count(), 0);
        sweep(&parent.path().join("none"), &held, &BTreeSet::new()).expect("there is nothing");
        remove(&task(1, 4)).expect("it is gone already");
    }

    /// A task that broke out of WebAssembly can put anything there.
    #[test]
    fn a_sweep_follows_nothing_and_waits_for_nobody() {
        let (parent, elsewhere) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        fs::write(elsewhere.path().join("letter"), "dear").expect("ours");
        let bag = of_bag(parent.path(), BagId([1; 32]));
        fs::create_dir(&bag).expect("ours");
        symlink(elsewhere.path(), bag.join("1")).expect("a link");
        symlink(elsewhere.path(), of_bag(parent.path(), BagId([2; 32]))).expect("a link");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = bag.join("2");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        fs::write(bag.join("no number"), "").expect("ours");
        sweep(parent.path(), &BTreeMap::new(), &BTreeSet::new()).expect("nothing hinders it");
        assert!(elsewhere.path().join("letter").exists());
        assert!(!bag.exists());
        fs::create_dir(&bag).expect("ours");
        symlink(elsewhere.path(), bag.join("1")).expect("a link");
        remove(&bag.join("1")).expect("the link goes");
        assert!(elsewhere.path().join("letter").exists() && !bag.join("1").is_symlink());
    }
}

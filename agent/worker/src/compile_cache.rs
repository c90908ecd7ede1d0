//! The cache of compiled programs on disk.
//!
//! An artefact is machine code that wasmtime runs unchecked: a process that can write one controls all tasks that run
//! it. So the agent alone writes to the directory. A compiling worker gets one empty file of its own and never runs its
//! result, which becomes the artefact of that one program; running workers can read only the artefact that they run
//! (`confine`). Each has a checksum of its content (disks err), and its name covers program, wasmtime version, settings
//! and processor features. An artefact that does not fit is compiled anew and replaced.
//!
//! Left out: authentication by a key. A process that can write this user's 0600 files can replace the agent itself.

use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::NamedTempFile;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, Module};

/// First bytes of an artefact file; the BLAKE3 of the rest follows, then the artefact.
const MAGIC: &[u8; 16] = b"idlewood-code-1\n";
const HEADER_BYTES: usize = MAGIC.len() + blake3::OUT_LEN;
/// Largest artefact, and largest total size on disk; beyond it the longest unused are removed. Our choice: some hundred
/// large programs.
pub(super) const DISK_BYTES_MAX: u64 = 512 << 20;
/// Most WebAssembly stack of a task. C keeps arrays elsewhere, so this is frames only. Our choice: twice the default.
pub(super) const STACK_BYTES_MAX: usize = 1 << 20;

/// The engine with our settings, which decide whether an artefact fits.
pub(super) fn engine() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::OnDemand)
        .max_wasm_stack(STACK_BYTES_MAX)
        .async_stack_size(2 * STACK_BYTES_MAX)
        // Errors are worded for people; release builds have no names to show anyway.
        .wasm_backtrace_max_frames(None)
        // A slot is one core, also for compiling.
        .parallel_compilation(false)
        // Results must not depend on the machine.
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false);
    Engine::new(&config)
}

/// The cache, on the agent's side.
#[derive(Debug)]
pub(super) struct CompileCache {
    dir: PathBuf,
    /// Hash of everything that an artefact must fit, besides its program.
    settings: [u8; 32],
}

impl CompileCache {
    /// Uses `dir`, creating it if need be.
    ///
    /// # Errors
    /// When it cannot be created, or wasmtime does not support this machine.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut settings = Settings(blake3::Hasher::new_derive_key("idlewood 2026 compiled program"));
        engine().map_err(io::Error::other)?.precompile_compatibility_hash().hash(&mut settings);
        Ok(CompileCache { dir: dir.to_owned(), settings: *settings.0.finalize().as_bytes() })
    }

    /// The artefact of a program, if it is in the cache, private and undamaged.
    pub(super) fn find(&self, program: &[u8; 32]) -> Option<PathBuf> {
        let path = self.path(program);
        // The time of modification records its last use.
        let read = File::open(&path).and_then(|file| read(&file).map(|_| file));
        match read.and_then(|file| file.set_modified(SystemTime::now())) {
            Ok(()) => Some(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a compiled program is of no use: compiling it anew");
                None
            }
        }
    }

    /// An empty file for an artefact.
    ///
    /// # Errors
    /// The disk refuses.
    pub(super) fn draft(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(".new-").tempfile_in(&self.dir)
    }

    /// Makes a complete draft the artefact of a program. Without a sync: the checksum reveals a file that a power cut
    /// emptied.
    ///
    /// # Errors
    /// It is not complete, or the disk refuses.
    pub(super) fn keep(&self, program: &[u8; 32], draft: NamedTempFile) -> io::Result<PathBuf> {
        read(draft.as_file())?;
        self.make_room(0)?;
        let path = self.path(program);
        draft.persist(&path)?;
        Ok(path)
    }

    fn path(&self, program: &[u8; 32]) -> PathBuf {
        let mut key = blake3::Hasher::new_keyed(&self.settings);
        key.update(program);
        self.dir.join(key.finalize().to_hex().as_str())
    }

    /// Removes the longest unused files (also left-overs of agents killed while a worker compiled) until `bytes` more
    /// fit.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Another slot may have removed it meanwhile.
            if let Ok(metadata) = entry.metadata() {
                files.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        let mut total = bytes + files.iter().map(|(_, length, _)| length).sum::<u64>();
        files.sort();
        for (_, length, path) in files {
            if total <= DISK_BYTES_MAX {
                break;
            }
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => total -= length,
            }
        }
        Ok(())
    }
}

/// Compiles `wasm` into an empty file, in a compiling worker.
///
/// # Errors
/// The program does not compile, or the file cannot be written.
pub(super) fn compile(engine: &Engine, wasm: &[u8], file: &mut File) -> wasmtime::Result<Module> {
    let artefact = engine.precompile_module(wasm)?;
    file.write_all(MAGIC)?;
    file.write_all(blake3::hash(&artefact).as_bytes())?;
    file.write_all(&artefact)?;
    deserialize(engine, &artefact)
}

/// Loads an artefact found by the agent, in a running worker.
///
/// # Errors
/// It is not there, damaged, or made for another engine.
pub(super) fn load(engine: &Engine, path: &Path) -> wasmtime::Result<Module> {
    let bytes = read(&File::open(path)?)?;
    deserialize(engine, &bytes[HEADER_BYTES..])
}

/// Reads a file completely, if it is an artefact that only this user can have written.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    let ours = metadata.is_file()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o022 == 0
        && metadata.len() <= DISK_BYTES_MAX;
    if !ours {
        return Err(io::Error::other("others may have written it, or it is too large"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    file.take(DISK_BYTES_MAX).read_to_end(&mut bytes)?;
    let whole = bytes.split_at_checked(HEADER_BYTES).is_some_and(|(header, artefact)| {
        header[..MAGIC.len()] == *MAGIC && header[MAGIC.len()..] == *blake3::hash(artefact).as_bytes()
    });
    if whole { Ok(bytes) } else { Err(io::Error::other("it is damaged")) }
}

/// Makes a module of an artefact made by [`Engine::precompile_module`] on this machine.
fn deserialize(engine: &Engine, artefact: &[u8]) -> wasmtime::Result<Module> {
    // SAFETY: the bytes come either straight from `precompile_module`, or from a file that only the agent writes, whose
    // checksum was verified on these very bytes in memory. wasmtime checks version, settings and processor.
    #[allow(unsafe_code)]
    unsafe {
        Module::deserialize(engine, artefact)
    }
}

/// Feeds wasmtime's hash of its settings into BLAKE3, whose result does not change with the Rust version.
struct Settings(blake3::Hasher);

impl Hasher for Settings {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let mut first = [0; 8];
        first.copy_from_slice(&self.0.finalize().as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const NOOP: &[u8] = include_bytes!("../../tasks/noop/noop.wasm");

    struct Setup {
        dir: tempfile::TempDir,
        cache: CompileCache,
    }

    impl Setup {
        /// With one program compiled.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let cache = CompileCache::open(&dir.path().join("a/b")).unwrap();
            let setup = Setup { dir, cache };
            setup.compile();
            setup
        }

        fn compile(&self) {
            let mut draft = self.cache.draft().unwrap();
            compile(&engine().unwrap(), NOOP, draft.as_file_mut()).unwrap();
            // As another process would open it.
            let draft = NamedTempFile::from_parts(File::open(draft.path()).unwrap(), draft.into_temp_path());
            assert_eq!(self.cache.keep(&self.hash(), draft).unwrap(), self.file());
        }

        fn hash(&self) -> [u8; 32] {
            *blake3::hash(NOOP).as_bytes()
        }

        fn is_there(&self) -> bool {
            let found = self.cache.find(&self.hash());
            assert!(found.iter().all(|found| load(&engine().unwrap(), found).is_ok()));
            found.is_some()
        }

        fn file(&self) -> PathBuf {
            self.cache.path(&self.hash())
        }
    }

    #[test]
    fn compiles_once_and_keeps_it_private() {
        let setup = Setup::new();
        assert!(setup.is_there());
        assert_eq!(fs::metadata(setup.file()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&setup.cache.dir).unwrap().permissions().mode() & 0o777, 0o700);
        let again = CompileCache::open(&setup.dir.path().join("a/b")).unwrap();
        assert_eq!(again.find(&setup.hash()), Some(setup.file()));
        assert_eq!(again.find(&[7; 32]), None, "another program's");
        assert_eq!(fs::read_dir(&setup.cache.dir).unwrap().count(), 1, "no left-overs");
    }

    #[test]
    fn a_damaged_artefact_is_compiled_anew() {
        let setup = Setup::new();
        let good = fs::read(setup.file()).unwrap();
        let mut variants = vec![Vec::new(), good[..HEADER_BYTES - 1].to_vec(), good[..good.len() - 1].to_vec()];
        for position in [0, MAGIC.len(), HEADER_BYTES, good.len() / 2, good.len() - 1] {
            let mut flipped = good.clone();
            flipped[position] ^= 0x10;
            variants.push(flipped);
        }
        for damaged in variants {
            fs::write(setup.file(), &damaged).unwrap();
            assert!(!setup.is_there());
            load(&engine().unwrap(), &setup.file()).map(drop).unwrap_err();
            let mut draft = setup.cache.draft().unwrap();
            draft.write_all(&damaged).unwrap();
            let draft = NamedTempFile::from_parts(File::open(draft.path()).unwrap(), draft.into_temp_path());
            setup.cache.keep(&setup.hash(), draft).unwrap_err();
            setup.compile();
            assert_eq!(fs::read(setup.file()).unwrap(), good);
        }
    }

    #[test]
    fn an_artefact_that_others_can_write_is_not_loaded() {
        let setup = Setup::new();
        fs::set_permissions(setup.file(), fs::Permissions::from_mode(0o620)).unwrap();
        assert!(!setup.is_there());
        setup.compile();
        assert!(setup.is_there());
    }

    #[test]
    fn the_longest_unused_go_first() {
        let setup = Setup::new();
        let old = setup.cache.dir.join("old");
        let file = File::create(&old).unwrap();
        file.set_len(DISK_BYTES_MAX - 100).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        setup.cache.make_room(1).unwrap();
        assert!(!old.exists());
        assert!(setup.file().exists());
    }
}

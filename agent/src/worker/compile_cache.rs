//! Compiled programs: in memory for the last few, on disk for all that fit.
//!
//! An artefact is machine code that wasmtime runs as it finds it, so only what this machine produced is loaded: the
//! directory and the files belong to this user and nobody else may write them, each file carries a checksum of its
//! content (a disk may lie), and its name covers program, wasmtime version, settings and processor features. Anything
//! that does not fit is compiled anew and replaced.
//!
//! Left out: authentication by a key. Whoever can write this user's 0600 files can replace the agent itself.

use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use wasmtime::{Config, Engine, InstanceAllocationStrategy, Module};

/// First bytes of an artefact file; the BLAKE3 of the rest follows, then the artefact.
const MAGIC: &[u8; 16] = b"idlewood-code-1\n";
const HEADER_BYTES: usize = MAGIC.len() + blake3::OUT_LEN;
/// Largest sum of artefacts kept on disk; beyond it the longest unused go. Our choice: some hundred large programs.
const DISK_BYTES_MAX: u64 = 512 << 20;
/// Most WebAssembly stack of a task. C keeps arrays elsewhere, so this is frames only. Our choice: twice the default.
pub(super) const STACK_BYTES_MAX: usize = 1 << 20;

/// The engine with our settings. All settings are here, since they decide what an artefact is good for.
pub(super) fn engine() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::OnDemand)
        .max_wasm_stack(STACK_BYTES_MAX)
        .async_stack_size(2 * STACK_BYTES_MAX)
        // Errors are worded for people; release builds have no names to show anyway.
        .wasm_backtrace_max_frames(None)
        // A slot is one core, also while it compiles.
        .parallel_compilation(false)
        // Results must not depend on the machine.
        .wasm_relaxed_simd(false)
        .wasm_memory64(false)
        .wasm_multi_memory(false);
    Engine::new(&config)
}

/// Where compiled programs are kept.
pub(super) struct CompileCache {
    dir: PathBuf,
}

/// How a program came to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Read from disk.
    Loaded,
    /// Compiled; if it could not be kept for the next time, why.
    Compiled { kept: bool },
}

impl CompileCache {
    /// Uses `dir`, creating it if need be.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(CompileCache { dir: dir.to_owned() })
    }

    /// The compiled form of `wasm`, from disk or made now.
    ///
    /// # Errors
    /// The program does not compile. Trouble with the disk is not an error: the program is compiled instead.
    pub(super) fn module(&self, engine: &Engine, wasm: &[u8]) -> wasmtime::Result<(Module, Source)> {
        let path = self.path(engine, wasm);
        if let Some(module) = load(engine, &path) {
            return Ok((module, Source::Loaded));
        }
        let artefact = engine.precompile_module(wasm)?;
        let module = deserialize(engine, &artefact)?;
        let kept = match self.keep(&path, &artefact) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(dir = %self.dir.display(), %error, "a compiled program could not be kept: check space and permissions");
                false
            }
        };
        Ok((module, Source::Compiled { kept }))
    }

    fn path(&self, engine: &Engine, wasm: &[u8]) -> PathBuf {
        let mut key = Key(blake3::Hasher::new_derive_key("idlewood 2026 compiled program"));
        engine.precompile_compatibility_hash().hash(&mut key);
        key.0.update(blake3::hash(wasm).as_bytes());
        self.dir.join(key.0.finalize().to_hex().as_str())
    }

    fn keep(&self, path: &Path, artefact: &[u8]) -> io::Result<()> {
        self.make_room(artefact.len() as u64)?;
        // 0600, and renamed when complete. Without a sync: the checksum tells a file that a power cut emptied.
        let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(&self.dir)?;
        file.write_all(MAGIC)?;
        file.write_all(blake3::hash(artefact).as_bytes())?;
        file.write_all(artefact)?;
        file.persist(path)?;
        Ok(())
    }

    /// Removes what was unused longest (also left-overs of workers killed while writing) until `bytes` more fit.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            // Another worker may have removed it meanwhile.
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

/// The artefact at `path` if it is there, ours, undamaged, and made for this engine.
fn load(engine: &Engine, path: &Path) -> Option<Module> {
    let mut file = File::open(path).ok()?;
    let metadata = file.metadata().ok()?;
    let ours = metadata.is_file()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o022 == 0
        && metadata.len() <= DISK_BYTES_MAX;
    if !ours {
        tracing::warn!(path = %path.display(), "not loading a compiled program that others may have written");
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).ok()?);
    file.read_to_end(&mut bytes).ok()?;
    let (header, artefact) = bytes.split_at_checked(HEADER_BYTES)?;
    if header[..MAGIC.len()] != *MAGIC || header[MAGIC.len()..] != *blake3::hash(artefact).as_bytes() {
        tracing::warn!(path = %path.display(), "a compiled program is damaged on disk: compiling it anew");
        return None;
    }
    // The time of modification serves as the time of last use.
    if let Err(error) = file.set_modified(SystemTime::now()) {
        tracing::debug!(path = %path.display(), %error, "cannot mark a compiled program as used");
    }
    deserialize(engine, artefact).ok()
}

/// Makes a module of an artefact that [`Engine::precompile_module`] of this machine made.
fn deserialize(engine: &Engine, artefact: &[u8]) -> wasmtime::Result<Module> {
    // SAFETY: the bytes come either straight from `precompile_module`, or from a file that only this user can write,
    // whose checksum was verified on these very bytes in memory. wasmtime checks version, settings and processor.
    #[allow(unsafe_code)]
    unsafe {
        Module::deserialize(engine, artefact)
    }
}

/// Feeds what wasmtime hashes into BLAKE3, whose result does not change with the Rust version.
struct Key(blake3::Hasher);

impl Hasher for Key {
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
    const COMPILED: Source = Source::Compiled { kept: true };

    struct Setup {
        dir: tempfile::TempDir,
        engine: Engine,
        cache: CompileCache,
    }

    impl Setup {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let cache = CompileCache::open(&dir.path().join("a/b")).unwrap();
            Setup { dir, engine: engine().unwrap(), cache }
        }

        fn get(&self) -> Source {
            self.cache.module(&self.engine, NOOP).unwrap().1
        }

        fn file(&self) -> PathBuf {
            self.cache.path(&self.engine, NOOP)
        }
    }

    #[test]
    fn compiles_once_and_keeps_it_private() {
        let setup = Setup::new();
        assert_eq!(setup.get(), COMPILED);
        assert_eq!(setup.get(), Source::Loaded);
        assert_eq!(fs::metadata(setup.file()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&setup.cache.dir).unwrap().permissions().mode() & 0o777, 0o700);
        let again = CompileCache::open(&setup.dir.path().join("a/b")).unwrap();
        assert_eq!(again.module(&engine().unwrap(), NOOP).unwrap().1, Source::Loaded);
        assert_eq!(fs::read_dir(&setup.cache.dir).unwrap().count(), 1, "no left-overs");
    }

    #[test]
    fn a_damaged_artefact_is_compiled_anew() {
        let setup = Setup::new();
        setup.get();
        let good = fs::read(setup.file()).unwrap();
        let mut variants = vec![Vec::new(), good[..HEADER_BYTES - 1].to_vec(), good[..good.len() - 1].to_vec()];
        for position in [0, MAGIC.len(), HEADER_BYTES, good.len() / 2, good.len() - 1] {
            let mut flipped = good.clone();
            flipped[position] ^= 0x10;
            variants.push(flipped);
        }
        for damaged in variants {
            fs::write(setup.file(), damaged).unwrap();
            assert_eq!(setup.get(), COMPILED);
            assert_eq!(fs::read(setup.file()).unwrap(), good);
        }
    }

    #[test]
    fn what_others_can_write_is_not_loaded() {
        let setup = Setup::new();
        setup.get();
        fs::set_permissions(setup.file(), fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(setup.get(), COMPILED);
        assert_eq!(setup.get(), Source::Loaded);
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_hindrance() {
        let setup = Setup::new();
        fs::remove_dir_all(&setup.cache.dir).unwrap();
        assert_eq!(setup.get(), Source::Compiled { kept: false });
    }

    #[test]
    fn the_longest_unused_go_first() {
        let setup = Setup::new();
        setup.get();
        let old = setup.cache.dir.join("old");
        let file = File::create(&old).unwrap();
        file.set_len(DISK_BYTES_MAX - 100).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        setup.cache.make_room(1).unwrap();
        assert!(!old.exists());
        assert!(setup.file().exists());
    }
}

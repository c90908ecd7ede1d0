//! The machine's identity: one Ed25519 key in its own file, and its two notations.
//!
//! The overlay knows a peer by the 32 bytes of its public key, libp2p by a multihash that holds the same 32 bytes (keys
//! this short are inlined, not hashed), so the two convert without a table. The key is kept apart from the store, so
//! that a damaged store never costs a machine its place in the grid. Two files hold it: if one is damaged or gone, it
//! is rewritten from the other. Each holds both halves of the key, so that any changed byte is noticed.
//!
//! Left out: passphrases (an agent starts unattended) and rotation (a new key is a new machine).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use idlewood_overlay::PeerId;
use libp2p::identity::{Keypair, ed25519};
use libp2p::multihash::Multihash;

/// Name of the key's file inside the state directory.
pub const IDENTITY_FILE: &str = "identity.key";

/// Name of the second file with the same content.
pub const IDENTITY_COPY_FILE: &str = "identity.key.copy";

/// Suffix given to a damaged file.
const DAMAGED_SUFFIX: &str = ".damaged";

/// First line of the file: its kind and version.
const HEADER: &str = "idlewood identity v1";

/// Prefix of the 32 key bytes in the protobuf form of an Ed25519 public key: field 1 (type) = Ed25519, field 2 (data),
/// 32 bytes long.
const ED25519_PREFIX: [u8; 4] = [8, 1, 18, 32];

/// The multihash code under which libp2p inlines short keys.
const IDENTITY_CODE: u64 = 0;

/// Why the machine has no usable key. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file or its directory cannot be read or written.
    #[error("cannot {action} the identity key {}: {source}; check that the directory is yours and has space", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not hold a key.
    #[error(
        "the identity key {} is damaged ({reason}), and so is its copy {IDENTITY_COPY_FILE}, or there is none; restore it from \
         a backup, or remove both to join the grid as a new machine: bags that were submitted here and are not over are given \
         up then, and the results that are here stay",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The flaw.
        reason: &'static str,
    },
    /// Others on this machine can read the key.
    #[error("the identity key {} can be read by others; run: chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the key of the machine from `dir`, or makes one there (mode 0600, durable) if there is none.
///
/// `dir` is created (0700) if it is missing. A damaged file is kept under another name, and rewritten from the other
/// one.
///
/// # Errors
/// When files exist and none is sound, or one is readable by others, or cannot be read or written. An existing key is
/// never overwritten.
pub fn load_or_create(dir: &Path) -> Result<Keypair, IdentityError> {
    let (path, copy) = (dir.join(IDENTITY_FILE), dir.join(IDENTITY_COPY_FILE));
    let (first, second) = (load(&path), load(&copy));
    match (first, second) {
        (Ok(key), Ok(copied)) if key.public() == copied.public() => Ok(key.into()),
        (Err(error @ IdentityError::Exposed { .. }), _) | (_, Err(error @ IdentityError::Exposed { .. })) => Err(error),
        (Ok(key), copied) => {
            // An older idlewood writes no copy, and a key restored from elsewhere lies beside the copy of the former
            // one.
            let is_there = !is_absent(&copied);
            if is_there {
                tracing::warn!(file = %copy.display(), "the copy of the identity key is damaged, and is made again");
            }
            if let Err(error) = renew(dir, &copy, is_there, &key) {
                tracing::warn!(%error, "there is no copy of the identity key: keep one elsewhere");
            }
            Ok(key.into())
        }
        (first, Ok(key)) => {
            let is_there = !is_absent(&first);
            tracing::error!(
                file = %path.display(),
                "the identity key is {}; it was written anew from its copy: check the disk (to join as a new machine, remove {} \
                 and {IDENTITY_COPY_FILE})",
                if is_there { "damaged" } else { "missing" }, IDENTITY_FILE
            );
            let write = |source| IdentityError::Io { action: "restore", path: path.clone(), source };
            renew(dir, &path, is_there, &key).map_err(write)?;
            Ok(key.into())
        }
        (Err(error), copied) if !is_not_found(&error) => {
            drop(copied);
            Err(error)
        }
        (Err(_), Err(error)) if !is_not_found(&error) => Err(error),
        (Err(_), Err(_)) => create(dir),
    }
}

fn is_not_found(error: &IdentityError) -> bool {
    matches!(error, IdentityError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

fn is_absent(loaded: &Result<ed25519::Keypair, IdentityError>) -> bool {
    loaded.as_ref().is_err_and(is_not_found)
}

fn create(dir: &Path) -> Result<Keypair, IdentityError> {
    let path = dir.join(IDENTITY_FILE);
    let fail = |action| {
        let path = path.clone();
        move |source| IdentityError::Io { action, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail("create the directory of"))?;
    let key = ed25519::Keypair::generate();
    write(dir, &path, &key).map_err(fail("write"))?;
    write(dir, &dir.join(IDENTITY_COPY_FILE), &key).map_err(fail("write the copy of"))?;
    Ok(key.into())
}

/// Rewrites a file with the key; keeps a damaged one under another name.
fn renew(dir: &Path, path: &Path, is_there: bool, key: &ed25519::Keypair) -> io::Result<()> {
    if is_there {
        let mut damaged = path.as_os_str().to_owned();
        damaged.push(DAMAGED_SUFFIX);
        fs::rename(path, damaged)?;
    }
    write(dir, path, key)
}

fn load(path: &Path) -> Result<ed25519::Keypair, IdentityError> {
    let io = |source| IdentityError::Io { action: "read", path: path.to_owned(), source };
    let damaged = |reason| IdentityError::Damaged { path: path.to_owned(), reason };
    let mode = fs::metadata(path).map_err(io)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(IdentityError::Exposed { path: path.to_owned() });
    }
    let bytes = fs::read(path).map_err(io)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(damaged("its first line is not the expected header"));
    }
    let line = lines.next().ok_or_else(|| damaged("the key is missing"))?;
    if lines.next().is_some() {
        return Err(damaged("text follows the key"));
    }
    let mut bytes = hex::decode(line).map_err(|_| damaged("the key is not hexadecimal"))?;
    // The 64 bytes hold the secret and the public half; decoding checks that they belong together.
    let key =
        ed25519::Keypair::try_from_bytes(&mut bytes).map_err(|_| damaged("the halves of the key do not match"))?;
    Ok(key)
}

fn write(dir: &Path, path: &Path, key: &ed25519::Keypair) -> io::Result<()> {
    let mut file = tempfile::Builder::new().prefix("identity.key.new-").tempfile_in(dir)?; // mode 0600
    writeln!(file, "{HEADER}\n{}", hex::encode(key.to_bytes()))?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    File::open(dir)?.sync_all()
}

/// The overlay's name of the machine that holds `key`; `None` for a key that is not Ed25519 (never one of ours).
pub fn peer_id(key: &Keypair) -> Option<PeerId> {
    from_libp2p(&key.public().to_peer_id())
}

/// The overlay's name of a libp2p peer; `None` where its key is not Ed25519.
pub fn from_libp2p(peer: &libp2p::PeerId) -> Option<PeerId> {
    let hash: &Multihash<64> = peer.as_ref();
    let (prefix, key) = hash.digest().split_first_chunk::<4>()?;
    if hash.code() != IDENTITY_CODE || *prefix != ED25519_PREFIX {
        return None;
    }
    key.try_into().ok().map(PeerId)
}

/// The libp2p name of a peer of the overlay.
///
/// Does not check that the bytes are a point of the curve: a peer with others can never authenticate.
///
/// # Panics
/// Never: 36 bytes always fit an inlined multihash.
pub fn to_libp2p(peer: PeerId) -> libp2p::PeerId {
    let mut digest = [0; 36];
    digest[..4].copy_from_slice(&ED25519_PREFIX);
    digest[4..].copy_from_slice(&peer.0);
    let hash = Multihash::wrap(IDENTITY_CODE, &digest).expect("36 bytes fit a multihash of 64");
    libp2p::PeerId::from_multihash(hash).expect("libp2p inlines keys of up to 42 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_survives_a_restart_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let first = load_or_create(&state).unwrap();
        let again = load_or_create(&state).unwrap();
        assert_eq!(first.public(), again.public());
        for file in [IDENTITY_FILE, IDENTITY_COPY_FILE] {
            assert_eq!(fs::metadata(state.join(file)).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(&state).unwrap().count(), 2, "nothing but the key and its copy may stay behind");
    }

    #[test]
    fn both_notations_of_a_peer_agree_with_libp2p() {
        for _ in 0..20 {
            let key = Keypair::generate_ed25519();
            let theirs = key.public().to_peer_id();
            let bytes = key.public().try_into_ed25519().unwrap().to_bytes();
            assert_eq!(from_libp2p(&theirs), Some(PeerId(bytes)));
            assert_eq!(to_libp2p(PeerId(bytes)), theirs);
            assert_eq!(peer_id(&key), Some(PeerId(bytes)));
        }
        let hashed = Multihash::wrap(0x12, &[7; 32]).unwrap();
        assert_eq!(from_libp2p(&libp2p::PeerId::from_multihash(hashed).unwrap()), None);
    }

    #[test]
    fn no_flipped_byte_and_no_missing_file_costs_the_identity() {
        let dir = tempfile::tempdir().unwrap();
        let name = load_or_create(dir.path()).unwrap().public();
        let files = [IDENTITY_FILE, IDENTITY_COPY_FILE].map(|file| dir.path().join(file));
        let good = fs::read(&files[0]).unwrap();
        assert_eq!(fs::read(&files[1]).unwrap(), good);
        for file in &files {
            for position in 0..good.len() {
                let mut bad = good.clone();
                bad[position] ^= 1;
                fs::write(file, &bad).unwrap();
                assert_eq!(load_or_create(dir.path()).unwrap().public(), name, "{file:?} at {position}");
                let kept = PathBuf::from(format!("{}{DAMAGED_SUFFIX}", file.display()));
                assert_eq!(fs::read(kept).unwrap(), bad, "{file:?} at {position}");
                assert!(files.iter().all(|file| fs::read(file).unwrap() == good), "{file:?} at {position}");
            }
            fs::remove_file(file).unwrap();
            assert_eq!(load_or_create(dir.path()).unwrap().public(), name, "without {file:?}");
            assert!(files.iter().all(|file| fs::read(file).unwrap() == good));
        }
        // After removing both, the machine has a new identity.
        files.iter().for_each(|file| fs::remove_file(file).unwrap());
        assert_ne!(load_or_create(dir.path()).unwrap().public(), name);
    }

    #[test]
    fn a_damaged_or_exposed_key_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        load_or_create(dir.path()).unwrap();
        // As an older idlewood leaves it.
        fs::remove_file(dir.path().join(IDENTITY_COPY_FILE)).unwrap();
        let path = dir.path().join(IDENTITY_FILE);
        let good = fs::read(&path).unwrap();
        for position in 0..good.len() - 1 {
            let mut bad = good.clone();
            bad[position] ^= 1;
            fs::write(&path, &bad).unwrap();
            let error = load_or_create(dir.path()).unwrap_err();
            assert!(matches!(error, IdentityError::Damaged { .. }), "flip at {position}: {error}");
            assert!(error.to_string().contains("remove both") && error.to_string().contains("given up"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bad);
        }
        for length in 0..good.len() - 1 {
            fs::write(&path, &good[..length]).unwrap();
            assert!(load_or_create(dir.path()).is_err(), "truncated to {length}");
        }
        fs::write(&path, &good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(load_or_create(dir.path()), Err(IdentityError::Exposed { .. })));
    }
}

//! The grid's key: whoever has it makes administrators and so owns the grid.
//!
//! It is a file of its own (0600) on the machine that made the grid, in the clear or sealed with a passphrase: Argon2id
//! (64 MiB, 3 passes) gives the key of ChaCha20-Poly1305, which also covers the file's first line. An agent needs the
//! key for administrators alone, so a sealed one is opened when an admin gives the passphrase.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit as _};
use idlewood_overlay::GridId;
use libp2p::identity::ed25519;

use super::canonical::grid_id;
use super::files;

/// Name of the file inside the grid's directory.
pub const GRID_KEY_FILE: &str = "grid.key";

/// Keys of grids that this machine has made and left, in the grid's directory; none where there is no directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn former_keys(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_former = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("former-") && name.ends_with(".key")
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(is_former).collect())
}

/// First line of the file.
const HEADER: &str = "idlewood grid key v1";

/// Memory and passes of the derivation of a key from a passphrase.
const ARGON2_KIB: u32 = 64 * 1024;
const ARGON2_PASSES: u32 = 3;

/// Why there is no usable grid key. Nothing was changed on disk.
#[derive(Debug, thiserror::Error)]
pub enum GridKeyError {
    /// The file cannot be read or written.
    #[error("cannot {action} the grid key {}: {source}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not hold a key.
    #[error("the grid key {} is damaged; restore it from a backup", .0.display())]
    Damaged(PathBuf),
    /// Others on this machine can read it.
    #[error("the grid key {path} can be read by others; run: chmod 600 {path}", path = .0.display())]
    Exposed(PathBuf),
    /// It is sealed and no passphrase was given.
    #[error("the grid key is sealed with a passphrase: name a file that holds it with --passphrase-file")]
    Sealed,
    /// The passphrase does not open it.
    #[error("the passphrase does not open the grid key")]
    WrongPassphrase,
    /// It is the key of another grid.
    #[error("the grid key {} belongs to another grid", .0.display())]
    Foreign(PathBuf),
    /// The memory for the derivation is not available.
    #[error("cannot derive a key from the passphrase: {0}")]
    Derivation(argon2::Error),
}

/// Writes `key` to `directory`, sealed if there is a passphrase. A key that exists is never overwritten.
pub(super) fn write(directory: &Path, key: &ed25519::Keypair, passphrase: Option<&[u8]>) -> Result<(), GridKeyError> {
    let path = directory.join(GRID_KEY_FILE);
    let line = match passphrase {
        None => format!("plain {}", hex::encode(key.to_bytes())),
        Some(passphrase) => {
            let (salt, nonce): ([u8; 16], [u8; 12]) = (rand::random(), rand::random());
            let payload = Payload { msg: &key.to_bytes(), aad: HEADER.as_bytes() };
            let sealed = cipher(passphrase, &salt)?
                .encrypt(&nonce.into(), payload)
                .expect("64 bytes are not too many for the cipher");
            format!("sealed {} {} {}", hex::encode(salt), hex::encode(nonce), hex::encode(sealed))
        }
    };
    files::create(&path, format!("{HEADER}\n{line}\n").as_bytes()).map_err(|source| GridKeyError::Io {
        action: "write",
        path,
        source,
    })
}

/// Whether there is a key in `directory`, and whether it takes a passphrase.
pub(super) fn is_sealed(directory: &Path) -> Result<Option<bool>, GridKeyError> {
    match read(directory) {
        Ok(line) => Ok(Some(line.starts_with("sealed "))),
        Err(GridKeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the key of `grid` from `directory`.
///
/// # Errors
/// When it is missing, damaged, readable by others, of another grid, or does not open.
pub(super) fn load(
    directory: &Path,
    grid: GridId,
    passphrase: Option<&[u8]>,
) -> Result<ed25519::Keypair, GridKeyError> {
    let path = directory.join(GRID_KEY_FILE);
    let damaged = || GridKeyError::Damaged(path.clone());
    let line = read(directory)?;
    let words: Vec<&str> = line.split(' ').collect();
    let mut bytes = match words[..] {
        ["plain", key] => hex::decode(key).map_err(|_| damaged())?,
        ["sealed", salt, nonce, sealed] => {
            let passphrase = passphrase.ok_or(GridKeyError::Sealed)?;
            let decode = |text| hex::decode(text).map_err(|_| damaged());
            let nonce: [u8; 12] = decode(nonce)?.try_into().map_err(|_| damaged())?;
            let salt: [u8; 16] = decode(salt)?.try_into().map_err(|_| damaged())?;
            let payload = Payload { msg: &decode(sealed)?, aad: HEADER.as_bytes() };
            let opened = cipher(passphrase, &salt)?.decrypt(&nonce.into(), payload);
            opened.map_err(|_| GridKeyError::WrongPassphrase)?
        }
        _ => return Err(damaged()),
    };
    let key = ed25519::Keypair::try_from_bytes(&mut bytes).map_err(|_| damaged())?;
    if grid_id(&key.public().to_bytes()) != grid {
        return Err(GridKeyError::Foreign(path));
    }
    Ok(key)
}

/// The second line of the file.
fn read(directory: &Path) -> Result<String, GridKeyError> {
    let path = directory.join(GRID_KEY_FILE);
    let io = |source| GridKeyError::Io { action: "read", path: path.clone(), source };
    if fs::metadata(&path).map_err(io)?.permissions().mode() & 0o077 != 0 {
        return Err(GridKeyError::Exposed(path));
    }
    let text = fs::read_to_string(&path).map_err(io)?;
    match text.lines().collect::<Vec<_>>()[..] {
        [HEADER, line] => Ok(line.to_owned()),
        _ => Err(GridKeyError::Damaged(path)),
    }
}

fn cipher(passphrase: &[u8], salt: &[u8; 16]) -> Result<ChaCha20Poly1305, GridKeyError> {
    let params = Params::new(ARGON2_KIB, ARGON2_PASSES, 1, Some(32)).map_err(GridKeyError::Derivation)?;
    let mut key = [0; 32];
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2.hash_password_into(passphrase, salt, &mut key).map_err(GridKeyError::Derivation)?;
    Ok(ChaCha20Poly1305::new(&key.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_key_opens_with_its_passphrase_alone() {
        let directory = tempfile::tempdir().unwrap();
        let key = ed25519::Keypair::generate();
        let grid = grid_id(&key.public().to_bytes());
        assert_eq!(is_sealed(directory.path()).unwrap(), None);
        write(directory.path(), &key, Some(b"open sesame")).unwrap();
        assert_eq!(is_sealed(directory.path()).unwrap(), Some(true));
        let path = directory.path().join(GRID_KEY_FILE);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&hex::encode(&key.to_bytes()[..32])), "the secret is in the clear");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        let opened = load(directory.path(), grid, Some(b"open sesame")).unwrap();
        assert_eq!(opened.to_bytes(), key.to_bytes());
        assert!(matches!(load(directory.path(), grid, None), Err(GridKeyError::Sealed)));
        assert!(matches!(load(directory.path(), grid, Some(b"Open sesame")), Err(GridKeyError::WrongPassphrase)));
        assert!(matches!(load(directory.path(), GridId([1; 32]), Some(b"open sesame")), Err(GridKeyError::Foreign(_))));
        assert!(write(directory.path(), &key, None).is_err(), "a key is never overwritten");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_damaged_or_exposed_key_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let key = ed25519::Keypair::generate();
        let grid = grid_id(&key.public().to_bytes());
        write(directory.path(), &key, None).unwrap();
        assert_eq!(load(directory.path(), grid, None).unwrap().to_bytes(), key.to_bytes());
        let path = directory.path().join(GRID_KEY_FILE);
        let good = fs::read(&path).unwrap();
        for position in 0..good.len() - 1 {
            let mut bad = good.clone();
            bad[position] ^= 1;
            fs::write(&path, &bad).unwrap();
            assert!(load(directory.path(), grid, None).is_err(), "flip at {position}");
        }
        fs::write(&path, &good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        assert!(matches!(load(directory.path(), grid, None), Err(GridKeyError::Exposed(_))));
    }
}

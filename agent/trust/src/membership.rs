//! A machine's membership of its grid, in the directory `grid` of its state directory: its certificate, the
//! administrators that it knows, revocations, its invitations, and, on the machine that made the grid, the grid's key.
//!
//! Files are private, replaced as a whole, and durable before anything depends on them. A damaged one stops the agent
//! with a message: to continue without revocations would admit revoked machines.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use idlewood_overlay::{GridId, PeerId};
use libp2p::identity::{Keypair, ed25519};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::canonical::{self, Malformed, grid_id};
use super::certificate::{CHAIN_BYTES_MAX, Certificate, Chain, Role, Terms};
use super::key::{self, GRID_KEY_FILE, GridKeyError};
use super::revocation::{REVOCATION_BYTES_MAX, REVOCATIONS_MAX, Revocation, Revocations};
use super::{files, invitation};
use crate::identity;

/// Longest name of a grid, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Administrators remembered: those with the smallest peer ids, so that all machines remember the same.
pub(super) const ADMINS_MAX: usize = 16;

/// Invitations that are open at one time.
pub(super) const INVITATIONS_MAX: usize = 256;

/// Machines that may join with one invitation.
pub const USES_MAX: u32 = 10_000;

/// How long the certificate of the machine that makes a grid is valid: the grid's key lies beside it.
const CREATOR_LIFETIME_S: u64 = 10 * 366 * 86_400;

/// Version of the files.
const VERSION: u8 = 1;

/// Longest file: all invitations with all their guests.
const FILE_BYTES_MAX: usize = 128 << 20;

/// Name of the directory.
pub const DIRECTORY: &str = "grid";
const MEMBERSHIP_FILE: &str = "membership";
const REVOCATIONS_FILE: &str = "revocations";
const INVITATIONS_FILE: &str = "invitations";
/// All files of a membership.
const FILES: [&str; 3] = [MEMBERSHIP_FILE, REVOCATIONS_FILE, INVITATIONS_FILE];

/// The files of a membership, by name.
pub type MembershipFiles = Vec<(String, ByteBuf)>;

/// Why a machine's grid cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// A file or the directory cannot be read or written.
    #[error("cannot {action} {}: {source}; check that the directory is yours and has space", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not decode.
    #[error(
        "{path} is damaged; restore it from a backup, or `idlewood grid leave` and join again with a new invitation",
        path = .0.display()
    )]
    Damaged(PathBuf),
    /// Others on this machine can read the file.
    #[error("{path} can be read by others; run: chmod 600 {path}", path = .0.display())]
    Exposed(PathBuf),
    /// The certificate in it is not for this machine's key.
    #[error(
        "the certificate in {path} is not for this machine's key; `idlewood grid leave` and join with a new invitation",
        path = .0.display()
    )]
    OtherMachine(PathBuf),
    /// The machine has a grid already.
    #[error("this machine belongs to the grid {0:?} already; `idlewood grid leave` first")]
    Already(String),
    /// The machine has no grid.
    #[error("this machine belongs to no grid: `idlewood grid create` makes one, `idlewood grid join` joins one")]
    None,
    /// The grid's name cannot be used.
    #[error("a grid's name has 1 to {NAME_BYTES_MAX} bytes and no control characters")]
    Name,
    /// The grid's key cannot be used.
    #[error(transparent)]
    Key(#[from] GridKeyError),
}

/// An administrator and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Admin {
    pub(super) certificate: Certificate,
    /// A multiaddress without the peer; empty if unknown.
    pub(super) address: String,
}

/// An invitation in its issuer's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Invited {
    pub(super) secret_hash: [u8; 32],
    pub(super) role: Role,
    pub(super) expires_s: u64,
    pub(super) uses: u32,
    /// How long the certificates are valid.
    pub(super) lifetime_s: u64,
    /// Machines that joined with it. One that asks again gets another certificate, and counts once.
    pub(super) guests: Vec<PeerId>,
}

/// A membership without the grid's key.
#[derive(Clone, Debug)]
pub struct Membership {
    pub(super) directory: PathBuf,
    pub(super) name: String,
    pub(super) chain: Chain,
    pub(super) admins: BTreeMap<PeerId, Admin>,
    pub(super) revocations: Revocations,
    pub(super) invitations: Vec<Invited>,
}

#[derive(Serialize, Deserialize)]
struct Bytes(#[serde(with = "serde_bytes")] Vec<u8>);

#[derive(Serialize, Deserialize)]
struct Bytes32(#[serde(with = "serde_bytes")] [u8; 32]);

/// Version, name, chain, administrators.
#[derive(Serialize, Deserialize)]
struct MembershipFields(u8, String, Bytes, Vec<(Bytes, String)>);

/// Version, revocations.
#[derive(Serialize, Deserialize)]
struct RevocationsFields(u8, Vec<Bytes>);

/// Version, invitations: hash of the secret, role, expires, uses, lifetime, guests.
#[derive(Serialize, Deserialize)]
struct InvitationsFields(u8, Vec<(Bytes32, u8, u64, u32, u64, Vec<Bytes32>)>);

impl Membership {
    /// Makes a grid with `machine` as its first administrator, in `state_dir`.
    ///
    /// # Errors
    /// When the machine has a grid, the name cannot be used, or a file cannot be written.
    pub fn create(
        state_dir: &Path,
        machine: &Keypair,
        name: &str,
        passphrase: Option<&[u8]>,
        now_s: u64,
    ) -> Result<Self, MembershipError> {
        check_name(name)?;
        let directory = free_directory(state_dir)?;
        let key = ed25519::Keypair::generate();
        key::write(&directory, &key, passphrase)?;
        let terms = Terms {
            grid: grid_id(&key.public().to_bytes()),
            peer: peer_id(machine),
            role: Role::Admin,
            issued_s: now_s,
            expires_s: now_s + CREATOR_LIFETIME_S,
            nonce: rand::random(),
        };
        let chain = Chain { own: Certificate::issue(terms, &key), admin: None };
        Self::establish(directory, name, chain, BTreeMap::new())
    }

    /// Makes the machine a member by the issuer's answer, which is verified here.
    ///
    /// # Errors
    /// As [`Membership::create`].
    pub(super) fn join(
        state_dir: &Path,
        name: &str,
        chain: Chain,
        issuer: (PeerId, Admin),
    ) -> Result<Self, MembershipError> {
        check_name(name)?;
        let directory = free_directory(state_dir)?;
        Self::establish(directory, name, chain, BTreeMap::from([issuer]))
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn for_tests(state_dir: &Path, chain: Chain) -> Result<Self, MembershipError> {
        Self::establish(free_directory(state_dir)?, "test", chain, BTreeMap::new())
    }

    fn establish(
        directory: PathBuf,
        name: &str,
        chain: Chain,
        admins: BTreeMap<PeerId, Admin>,
    ) -> Result<Self, MembershipError> {
        let membership = Self {
            directory,
            name: name.to_owned(),
            chain,
            admins,
            revocations: Revocations::default(),
            invitations: Vec::new(),
        };
        membership.save_revocations()?;
        membership.save_invitations()?;
        // Last: this file makes the machine a member.
        membership.save()?;
        Ok(membership)
    }

    /// Reads the membership in `state_dir`; none if the machine belongs to no grid.
    ///
    /// # Errors
    /// When a file is damaged, readable by others, or for another machine's key.
    pub fn load(state_dir: &Path, machine: &Keypair) -> Result<Option<Self>, MembershipError> {
        let directory = state_dir.join(DIRECTORY);
        let path = directory.join(MEMBERSHIP_FILE);
        let Some(bytes) = read(&path)? else { return Ok(None) };
        let (name, chain, admins) = decode_membership(&bytes).map_err(|_| MembershipError::Damaged(path.clone()))?;
        if chain.own.terms.peer != peer_id(machine) {
            return Err(MembershipError::OtherMachine(path));
        }
        let grid = chain.own.terms.grid;
        let path = directory.join(REVOCATIONS_FILE);
        let damaged = || MembershipError::Damaged(path.clone());
        let bytes = read(&path)?.ok_or_else(damaged)?;
        let revocations = decode_revocations(&bytes, grid).map_err(|_| damaged())?;
        let path = directory.join(INVITATIONS_FILE);
        let damaged = || MembershipError::Damaged(path.clone());
        let bytes = read(&path)?.ok_or_else(damaged)?;
        let invitations = decode_invitations(&bytes).map_err(|_| damaged())?;
        Ok(Some(Self { directory, name, chain, admins, revocations, invitations }))
    }

    /// The files of the membership in `state_dir`, without the grid's key, for another state directory of this machine.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read_files(state_dir: &Path) -> Result<MembershipFiles, MembershipError> {
        let directory = state_dir.join(DIRECTORY);
        let files = FILES.map(|name| Ok(read(&directory.join(name))?.map(|bytes| (name.to_owned(), bytes.into()))));
        files.into_iter().filter_map(Result::transpose).collect()
    }

    /// Writes such files into a state directory that has none.
    ///
    /// # Errors
    /// When a file is none of a membership, or cannot be written.
    pub fn write_files(state_dir: &Path, files: &MembershipFiles) -> Result<(), MembershipError> {
        let directory = state_dir.join(DIRECTORY);
        let fail = |action, path: &Path| {
            let path = path.to_owned();
            move |source| MembershipError::Io { action, path, source }
        };
        files::make_directory(&directory).map_err(fail("create", &directory))?;
        for (name, bytes) in files {
            let path = directory.join(name);
            if !FILES.contains(&name.as_str()) {
                return Err(MembershipError::Damaged(path));
            }
            files::create(&path, bytes).map_err(fail("write", &path))?;
        }
        Ok(())
    }

    /// Leaves the grid. The grid's key, if it is here, is kept under another name, since its holder can always invite
    /// again; returns that path.
    ///
    /// # Errors
    /// When there is no grid, or files cannot be removed.
    pub fn leave(state_dir: &Path) -> Result<Option<PathBuf>, MembershipError> {
        let directory = state_dir.join(DIRECTORY);
        let path = directory.join(MEMBERSHIP_FILE);
        if !path.exists() {
            return Err(MembershipError::None);
        }
        let fail = |action, path: &Path| {
            let path = path.to_owned();
            move |source| MembershipError::Io { action, path, source }
        };
        for name in [MEMBERSHIP_FILE, REVOCATIONS_FILE, INVITATIONS_FILE] {
            files::remove(&directory.join(name)).map_err(fail("remove", &directory.join(name)))?;
        }
        // The list of neighbours belongs to the grid that was left.
        let neighbours = state_dir.join("neighbours.json");
        files::remove(&neighbours).map_err(fail("remove", &neighbours))?;
        let key = directory.join(GRID_KEY_FILE);
        if !key.exists() {
            return Ok(None);
        }
        let kept = (1..).map(|number| directory.join(format!("former-{number}.key"))).find(|path| !path.exists());
        let kept = kept.expect("some number is free");
        fs::rename(&key, &kept).map_err(fail("rename", &key))?;
        Ok(Some(kept))
    }

    /// The grid.
    pub fn grid(&self) -> GridId {
        self.chain.own.terms.grid
    }

    /// The grid's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This machine's certificate.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The revocations that this machine knows.
    pub fn revocations(&self) -> &Revocations {
        &self.revocations
    }

    /// Administrators that it knows, and their addresses; without this machine.
    pub fn admins(&self) -> impl Iterator<Item = (PeerId, &str)> {
        self.admins.iter().map(|(peer, admin)| (*peer, admin.address.as_str()))
    }

    /// Its open invitations: role, expiry, uses, and how many were used.
    pub fn invitations(&self) -> impl Iterator<Item = (Role, u64, u32, u32)> {
        self.invitations.iter().map(|it| (it.role, it.expires_s, it.uses, it.guests.len() as u32))
    }

    /// Whether the grid's key is here, and if so whether it is sealed.
    ///
    /// # Errors
    /// When it is damaged or readable by others.
    pub fn key_is_sealed(&self) -> Result<Option<bool>, MembershipError> {
        Ok(key::is_sealed(&self.directory)?)
    }

    /// Remembers an administrator with its present address.
    pub(super) fn remember_admin(&mut self, peer: PeerId, admin: Admin) {
        if peer == self.chain.own.terms.peer {
            return;
        }
        self.admins.insert(peer, admin);
        while self.admins.len() > ADMINS_MAX {
            self.admins.pop_last();
        }
    }

    pub(super) fn save(&self) -> Result<(), MembershipError> {
        let admins = self.admins.values().map(|it| (Bytes(it.certificate.encode()), it.address.clone())).collect();
        let fields = MembershipFields(VERSION, self.name.clone(), Bytes(self.chain.encode()), admins);
        self.replace(MEMBERSHIP_FILE, &canonical::encode(&fields))
    }

    pub(super) fn save_revocations(&self) -> Result<(), MembershipError> {
        let all = self.revocations.iter().map(|revocation| Bytes(revocation.encode())).collect();
        self.replace(REVOCATIONS_FILE, &canonical::encode(&RevocationsFields(VERSION, all)))
    }

    pub(super) fn save_invitations(&self) -> Result<(), MembershipError> {
        let fields = |it: &Invited| {
            let guests = it.guests.iter().map(|guest| Bytes32(guest.0)).collect();
            (Bytes32(it.secret_hash), it.role.code(), it.expires_s, it.uses, it.lifetime_s, guests)
        };
        let all = self.invitations.iter().map(fields).collect();
        self.replace(INVITATIONS_FILE, &canonical::encode(&InvitationsFields(VERSION, all)))
    }

    fn replace(&self, name: &str, content: &[u8]) -> Result<(), MembershipError> {
        let path = self.directory.join(name);
        files::replace(&path, content).map_err(|source| MembershipError::Io { action: "write", path, source })
    }
}

/// The overlay's name of a machine.
fn peer_id(machine: &Keypair) -> PeerId {
    identity::peer_id(machine).expect("machines have Ed25519 keys")
}

fn check_name(name: &str) -> Result<(), MembershipError> {
    let is_good = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.chars().any(idlewood_units::steers);
    if is_good { Ok(()) } else { Err(MembershipError::Name) }
}

/// The directory for a new grid; an error if there is one.
fn free_directory(state_dir: &Path) -> Result<PathBuf, MembershipError> {
    let directory = state_dir.join(DIRECTORY);
    let path = directory.join(MEMBERSHIP_FILE);
    if let Some(bytes) = read(&path)? {
        let name = decode_membership(&bytes).map_or_else(|_| "?".to_owned(), |(name, ..)| name);
        return Err(MembershipError::Already(name));
    }
    files::make_directory(&directory).map_err(|source| MembershipError::Io {
        action: "create",
        path: directory.clone(),
        source,
    })?;
    Ok(directory)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, MembershipError> {
    let io = |source| MembershipError::Io { action: "read", path: path.to_owned(), source };
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?,
    };
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(MembershipError::Exposed(path.to_owned()));
    }
    if metadata.len() > FILE_BYTES_MAX as u64 {
        return Err(MembershipError::Damaged(path.to_owned()));
    }
    fs::read(path).map(Some).map_err(io)
}

fn decode_membership(bytes: &[u8]) -> Result<(String, Chain, BTreeMap<PeerId, Admin>), Malformed> {
    let MembershipFields(version, name, Bytes(chain), known) = canonical::decode(bytes, FILE_BYTES_MAX)?;
    if version != VERSION || check_name(&name).is_err() || chain.len() > CHAIN_BYTES_MAX {
        return Err(Malformed);
    }
    let mut admins = BTreeMap::new();
    for (Bytes(certificate), address) in known {
        let certificate = Certificate::decode(&certificate)?;
        admins.insert(certificate.terms.peer, Admin { certificate, address });
    }
    Ok((name, Chain::decode(&chain)?, admins))
}

fn decode_revocations(bytes: &[u8], grid: GridId) -> Result<Revocations, Malformed> {
    let RevocationsFields(version, all) = canonical::decode(bytes, FILE_BYTES_MAX)?;
    if version != VERSION || all.len() > REVOCATIONS_MAX {
        return Err(Malformed);
    }
    let mut revocations = Revocations::default();
    for Bytes(bytes) in all {
        if bytes.len() > REVOCATION_BYTES_MAX {
            return Err(Malformed);
        }
        let revocation = Revocation::decode(&bytes)?;
        if revocation.grid != grid {
            return Err(Malformed);
        }
        revocations.insert(revocation);
    }
    Ok(revocations)
}

fn decode_invitations(bytes: &[u8]) -> Result<Vec<Invited>, Malformed> {
    let InvitationsFields(version, all) = canonical::decode(bytes, FILE_BYTES_MAX)?;
    if version != VERSION || all.len() > INVITATIONS_MAX {
        return Err(Malformed);
    }
    let invited = |(Bytes32(secret_hash), role, expires_s, uses, lifetime_s, guests): (_, _, _, _, _, Vec<Bytes32>)| {
        let guests = guests.into_iter().map(|Bytes32(guest)| PeerId(guest)).collect();
        Ok(Invited { secret_hash, role: Role::from_code(role)?, expires_s, uses, lifetime_s, guests })
    };
    all.into_iter().map(invited).collect()
}

/// An address that fits an invitation.
pub(super) fn fits_invitation(address: &str) -> bool {
    address.len() <= invitation::ADDRESS_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files on disk may have been manipulated.
    #[test]
    fn mutations_of_membership_files() {
        use idlewood_testing::mutations;

        let key: ed25519::Keypair = ed25519::SecretKey::try_from_bytes([3; 32]).expect("32 bytes").into();
        let peer = PeerId(key.public().to_bytes());
        let grid = grid_id(&peer.0);
        let nonce = [5; 16];
        let terms = Terms { grid, peer, role: Role::Admin, issued_s: 1_800_000_000, expires_s: 1_802_592_000, nonce };
        let certificate = Certificate::issue(terms, &key);
        let chain = Chain { own: certificate.clone(), admin: None };
        let known = vec![(Bytes(certificate.encode()), "/ip4/192.0.2.7/tcp/4001".to_owned())];
        let fields = MembershipFields(VERSION, "home".to_owned(), Bytes(chain.encode()), known);
        mutations("membership file", vec![canonical::encode(&fields)], |bytes| decode_membership(bytes).is_ok());
        let revocation = Revocation::issue(grid, PeerId([9; 32]), 1_800_000_500, &key, None);
        let fields = RevocationsFields(VERSION, vec![Bytes(revocation.encode())]);
        mutations("revocations file", vec![canonical::encode(&fields)], |bytes| {
            decode_revocations(bytes, grid).is_ok()
        });
        let invited = (Bytes32([1; 32]), Role::Member.code(), 1_800_000_000, 3, 86_400, vec![Bytes32([2; 32])]);
        let fields = InvitationsFields(VERSION, vec![invited]);
        mutations("invitations file", vec![canonical::encode(&fields)], |bytes| decode_invitations(bytes).is_ok());
    }
}

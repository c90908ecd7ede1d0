//! Messages about the grid: the handshake that opens every connection, and gossip between connected machines.
//!
//! Frames of the handshake are two bytes of length, high first, and an array of three. Bytes: `docs/formats.md`.

use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed};
use super::certificate::{Certificate, Refused};
use super::revocation::Revocation;

/// Longest frame of the handshake.
pub const FRAME_BYTES_MAX: usize = 1024;

/// Longest message about the grid.
pub(crate) const GOSSIP_BYTES_MAX: usize = 80 * 1024;

/// Revocations in one message.
const PER_PAGE: usize = 128;

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// Asks to be admitted.
    Hello(Hello),
    /// Asks to join the grid.
    Join {
        /// The secret of the invitation.
        secret: [u8; 16],
    },
}

/// A machine's introduction of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its chain of certificates.
    pub chain: Vec<u8>,
    /// Digest of the revocations and administrators that it knows.
    pub digest: [u8; 16],
}

/// The answer to a machine that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The guest's chain of certificates.
    pub chain: Vec<u8>,
    /// The certificate of the administrator that issued it.
    pub issuer: Vec<u8>,
    /// The grid's name.
    pub name: String,
}

#[derive(Serialize, Deserialize)]
struct Frame(u8, #[serde(with = "serde_bytes")] Vec<u8>, #[serde(with = "serde_bytes")] Vec<u8>);

#[derive(Serialize, Deserialize)]
struct WelcomeFields(#[serde(with = "serde_bytes")] Vec<u8>, String);

impl First {
    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        canonical::encode(&match self {
            Self::Hello(Hello { chain, digest }) => Frame(0, chain.clone(), digest.to_vec()),
            Self::Join { secret } => Frame(1, secret.to_vec(), Vec::new()),
        })
    }

    /// Reads a first message.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        match canonical::decode(bytes, FRAME_BYTES_MAX)? {
            Frame(0, chain, digest) => {
                Ok(Self::Hello(Hello { chain, digest: digest.try_into().map_err(|_| Malformed)? }))
            }
            Frame(1, secret, rest) if rest.is_empty() => {
                Ok(Self::Join { secret: secret.try_into().map_err(|_| Malformed)? })
            }
            Frame(..) => Err(Malformed),
        }
    }
}

/// An answer in the handshake; refusals are encoded by [`encode_answer`].
pub trait Answer: Sized {
    /// Its two fields on the wire.
    fn fields(&self) -> (Vec<u8>, Vec<u8>);
    /// Reads those fields.
    ///
    /// # Errors
    /// [`Malformed`].
    fn from_fields(first: Vec<u8>, second: Vec<u8>) -> Result<Self, Malformed>;
}

impl Answer for Hello {
    fn fields(&self) -> (Vec<u8>, Vec<u8>) {
        (self.chain.clone(), self.digest.to_vec())
    }

    fn from_fields(chain: Vec<u8>, digest: Vec<u8>) -> Result<Self, Malformed> {
        Ok(Self { chain, digest: digest.try_into().map_err(|_| Malformed)? })
    }
}

impl Answer for Welcome {
    fn fields(&self) -> (Vec<u8>, Vec<u8>) {
        (self.chain.clone(), canonical::encode(&WelcomeFields(self.issuer.clone(), self.name.clone())))
    }

    fn from_fields(chain: Vec<u8>, rest: Vec<u8>) -> Result<Self, Malformed> {
        let WelcomeFields(issuer, name) = canonical::decode(&rest, FRAME_BYTES_MAX)?;
        Ok(Self { chain, issuer, name })
    }
}

/// The last answer, with nothing to add.
impl Answer for () {
    fn fields(&self) -> (Vec<u8>, Vec<u8>) {
        (Vec::new(), Vec::new())
    }

    fn from_fields(first: Vec<u8>, second: Vec<u8>) -> Result<Self, Malformed> {
        if first.is_empty() && second.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// The frame of an answer.
pub fn encode_answer<T: Answer>(answer: &Result<T, Refused>) -> Vec<u8> {
    canonical::encode(&match answer {
        Ok(answer) => {
            let (first, second) = answer.fields();
            Frame(0, first, second)
        }
        Err(refused) => Frame(*refused as u8, Vec::new(), Vec::new()),
    })
}

/// Reads the frame of an answer.
///
/// # Errors
/// [`Malformed`].
pub fn decode_answer<T: Answer>(bytes: &[u8]) -> Result<Result<T, Refused>, Malformed> {
    match canonical::decode(bytes, FRAME_BYTES_MAX)? {
        Frame(0, first, second) => T::from_fields(first, second).map(Ok),
        Frame(code, first, second) if first.is_empty() && second.is_empty() => {
            Refused::from_code(code).map(Err).ok_or(Malformed)
        }
        Frame(..) => Err(Malformed),
    }
}

/// Messages between connected machines about their grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gossip {
    /// Revocations, and administrators with their addresses.
    Known { revocations: Vec<Revocation>, admins: Vec<(Certificate, String)> },
    /// The sender's certificate was renewed.
    Certificate(Vec<u8>),
    /// The sender asks an administrator to renew its certificate.
    Renew,
}

#[derive(Serialize, Deserialize)]
struct Bytes(#[serde(with = "serde_bytes")] Vec<u8>);

/// Kind, certificates or revocations, administrators.
#[derive(Serialize, Deserialize)]
struct GossipFields(u8, Vec<Bytes>, Vec<(Bytes, String)>);

impl Gossip {
    pub(crate) fn encode(&self) -> Vec<u8> {
        canonical::encode(&match self {
            Self::Known { revocations, admins } => GossipFields(
                0,
                revocations.iter().map(|revocation| Bytes(revocation.encode())).collect(),
                admins.iter().map(|(certificate, address)| (Bytes(certificate.encode()), address.clone())).collect(),
            ),
            Self::Certificate(chain) => GossipFields(1, vec![Bytes(chain.clone())], Vec::new()),
            Self::Renew => GossipFields(2, Vec::new(), Vec::new()),
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let GossipFields(kind, mut first, second) = canonical::decode(bytes, GOSSIP_BYTES_MAX)?;
        match kind {
            0 if first.len() <= PER_PAGE && second.len() <= super::membership::ADMINS_MAX + 1 => {
                let revocations =
                    first.iter().map(|Bytes(bytes)| Revocation::decode(bytes)).collect::<Result<_, _>>()?;
                let admin = |(Bytes(bytes), address): (Bytes, String)| Ok((Certificate::decode(&bytes)?, address));
                Ok(Self::Known { revocations, admins: second.into_iter().map(admin).collect::<Result<_, _>>()? })
            }
            1 if second.is_empty() && first.len() == 1 => Ok(Self::Certificate(first.remove(0).0)),
            2 if first.is_empty() && second.is_empty() => Ok(Self::Renew),
            _ => Err(Malformed),
        }
    }
}

/// The message by which a machine asks an administrator to renew its certificate.
pub fn ask_for_renewal() -> Vec<u8> {
    Gossip::Renew.encode()
}

/// Encodes this as messages; the administrators are in the first one.
pub(super) fn pages<'a>(
    revocations: impl Iterator<Item = &'a Revocation>,
    admins: Vec<(Vec<u8>, String)>,
) -> Vec<Vec<u8>> {
    let revocations: Vec<Bytes> = revocations.map(|revocation| Bytes(revocation.encode())).collect();
    let mut admins: Vec<_> = admins.into_iter().map(|(certificate, address)| (Bytes(certificate), address)).collect();
    let mut pages = Vec::new();
    let mut rest = revocations.into_iter().peekable();
    while rest.peek().is_some() || !admins.is_empty() {
        let page: Vec<Bytes> = rest.by_ref().take(PER_PAGE).collect();
        pages.push(canonical::encode(&GossipFields(0, page, std::mem::take(&mut admins))));
    }
    pages
}

/// The answer to [`Gossip::Renew`]: a chain, or the refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewal(pub(crate) Result<Vec<u8>, Refused>);

impl Renewal {
    pub(crate) fn encode(&self) -> Vec<u8> {
        canonical::encode(&match &self.0 {
            Ok(chain) => Frame(0, chain.clone(), Vec::new()),
            Err(refused) => Frame(*refused as u8, Vec::new(), Vec::new()),
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        match canonical::decode(bytes, FRAME_BYTES_MAX)? {
            Frame(0, chain, rest) if rest.is_empty() => Ok(Self(Ok(chain))),
            Frame(code, first, second) if first.is_empty() && second.is_empty() => {
                Refused::from_code(code).map(|refused| Self(Err(refused))).ok_or(Malformed)
            }
            Frame(..) => Err(Malformed),
        }
    }
}

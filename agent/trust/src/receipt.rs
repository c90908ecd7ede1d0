//! Receipts: signed statements of executors about the results that they give.
//!
//! A statement names one task and its outcome. A machine signs many at a time: the root of a Merkle tree over their
//! hashes. So a signature is made, and checked, once for each message of results, and yet each receipt can be checked
//! alone, from the statement, the sibling hashes on its path to the root, and the signature. Bytes: `docs/formats.md`.
//!
//! A receipt proves who made the statement, not that it is true.

use idlewood_overlay::{GridId, PeerId};
use libp2p::identity::ed25519;
use serde::{Deserialize, Serialize};

use super::canonical::{self, Malformed};

/// Prefix of a root when it is signed.
const DOMAIN: &[u8] = b"idlewood results v1";
/// Version of statements, proofs and receipts.
const VERSION: u8 = 1;
/// Prefixes of a statement, and of two hashes, when they are hashed: one cannot stand for the other.
const LEAF: u8 = 0;
const NODE: u8 = 1;
/// Most statements under one signature.
const STATEMENTS_MAX: u64 = 1 << 16;
/// Largest proof, in bytes: sixteen levels of 34 bytes, and the rest.
pub(crate) const PROOF_BYTES_MAX: usize = 1024;
/// Largest receipt.
pub const RECEIPT_BYTES_MAX: usize = PROOF_BYTES_MAX + 512;

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It failed: its exit code is not one that the bag declares as success, or it did not end by itself.
    Failed,
    /// It succeeded.
    Succeeded,
    /// Its worker process died.
    Crashed,
    /// It was handed back before its end; the output is its checkpoint.
    HandedBack,
}

impl From<Ending> for u8 {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Failed => 0,
            Ending::Succeeded => 1,
            Ending::Crashed => 2,
            Ending::HandedBack => 3,
        }
    }
}

impl TryFrom<u8> for Ending {
    type Error = Malformed;

    fn try_from(number: u8) -> Result<Self, Malformed> {
        match number {
            0 => Ok(Self::Failed),
            1 => Ok(Self::Succeeded),
            2 => Ok(Self::Crashed),
            3 => Ok(Self::HandedBack),
            _ => Err(Malformed),
        }
    }
}

/// An executor's statement about one task that it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The grid.
    pub grid: GridId,
    /// The bag.
    pub bag: [u8; 32],
    /// The task.
    pub index: u64,
    /// 0 for the first try.
    pub attempt: u32,
    /// BLAKE3 of the program.
    pub program: [u8; 32],
    /// Hash of the task's input ([`crate::manifest::Manifest::input_hash`]).
    pub input: [u8; 32],
    /// BLAKE3 of the task's output blob.
    pub output: [u8; 32],
    /// How it ended.
    pub ending: Ending,
    /// Its exit code; `None` if it did not end by itself.
    pub exit_code: Option<u8>,
    /// The task's measured work, in thousands of operations of the reference kernel, rounded down.
    pub work_kop: u64,
}

#[derive(Serialize, Deserialize)]
struct StatementFields(
    u8,
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] [u8; 32],
    u64,
    u32,
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] [u8; 32],
    u8,
    u16,
    u64,
);

impl Statement {
    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        canonical::encode(&StatementFields(
            VERSION,
            self.grid.0,
            self.bag,
            self.index,
            self.attempt,
            self.program,
            self.input,
            self.output,
            self.ending.into(),
            self.exit_code.map_or(0, |code| u16::from(code) + 1),
            self.work_kop,
        ))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let StatementFields(version, grid, bag, index, attempt, program, input, output, ending, code, work_kop) =
            canonical::decode(bytes, RECEIPT_BYTES_MAX)?;
        if version != VERSION {
            return Err(Malformed);
        }
        let exit_code = match code.checked_sub(1) {
            None => None,
            Some(code) => Some(u8::try_from(code).map_err(|_| Malformed)?),
        };
        let (grid, ending) = (GridId(grid), Ending::try_from(ending)?);
        Ok(Self { grid, bag, index, attempt, program, input, output, ending, exit_code, work_kop })
    }

    fn hash(&self) -> [u8; 32] {
        hash(LEAF, &[&self.encode()])
    }
}

fn hash(kind: u8, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[kind]);
    parts.iter().for_each(|part| {
        hasher.update(part);
    });
    *hasher.finalize().as_bytes()
}

/// The signed bytes for a tree of so many statements.
fn body(root: &[u8; 32], count: u64) -> Vec<u8> {
    [root.as_slice(), &count.to_be_bytes()].concat()
}

/// The statements of one message, hashed in pairs up to one root; a hash without a sibling goes up unchanged.
#[derive(Debug)]
pub struct Batch {
    /// The statements' hashes first, the root last.
    levels: Vec<Vec<[u8; 32]>>,
}

impl Batch {
    /// Panics without a statement.
    pub fn new<'a>(statements: impl IntoIterator<Item = &'a Statement>) -> Self {
        let mut levels = vec![statements.into_iter().map(Statement::hash).collect::<Vec<_>>()];
        while let Some(level) = levels.last().filter(|level| level.len() > 1) {
            let above = level.chunks(2).map(|pair| match pair {
                [left, right] => hash(NODE, &[left, right]),
                alone => alone[0],
            });
            levels.push(above.collect());
        }
        Self { levels }
    }

    /// The signed bytes: the root, and the number of statements.
    fn body(&self) -> Vec<u8> {
        let root = self.levels.last().and_then(|level| level.first()).copied().unwrap_or_default();
        body(&root, self.count())
    }

    fn count(&self) -> u64 {
        self.levels.first().map_or(0, Vec::len) as u64
    }

    pub(super) fn sign(&self, key: &ed25519::Keypair) -> [u8; 64] {
        canonical::sign(key, DOMAIN, &self.body())
    }

    /// Whether this machine signed the batch.
    pub fn is_signed_by(&self, executor: PeerId, signature: &[u8; 64]) -> bool {
        canonical::is_signed_by(&executor.0, DOMAIN, &self.body(), signature)
    }

    /// The proof of the statement at `position`.
    pub fn proof(&self, position: usize, signature: [u8; 64]) -> Proof {
        let mut at = position;
        let mut beside = Vec::new();
        for level in &self.levels {
            beside.extend(level.get(at ^ 1));
            at /= 2;
        }
        Proof { position: position as u64, count: self.count(), beside, signature }
    }
}

/// Proof of a statement: its position in its batch, and the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    position: u64,
    count: u64,
    /// The sibling hashes on the path to the root.
    beside: Vec<[u8; 32]>,
    signature: [u8; 64],
}

#[derive(Serialize, Deserialize)]
struct Hash(#[serde(with = "serde_bytes")] [u8; 32]);

#[derive(Serialize, Deserialize)]
struct ProofFields(u8, u64, u64, Vec<Hash>, #[serde(with = "serde_bytes")] [u8; 64]);

impl Proof {
    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        let beside = self.beside.iter().map(|hash| Hash(*hash)).collect();
        canonical::encode(&ProofFields(VERSION, self.position, self.count, beside, self.signature))
    }

    /// Reads a proof.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let ProofFields(version, position, count, beside, signature) = canonical::decode(bytes, PROOF_BYTES_MAX)?;
        if version != VERSION || position >= count || count > STATEMENTS_MAX {
            return Err(Malformed);
        }
        Ok(Self { position, count, beside: beside.into_iter().map(|hash| hash.0).collect(), signature })
    }

    /// Whether this machine signed the statement.
    fn holds(&self, statement: &Statement, executor: PeerId) -> bool {
        let (mut at, mut width, mut up) = (self.position, self.count, statement.hash());
        let mut beside = self.beside.iter();
        while width > 1 {
            // The last hash of an odd number has no sibling.
            if at ^ 1 < width {
                let Some(other) = beside.next() else { return false };
                up = if at.is_multiple_of(2) { hash(NODE, &[&up, other]) } else { hash(NODE, &[other, &up]) };
            }
            (at, width) = (at / 2, width.div_ceil(2));
        }
        beside.next().is_none() && canonical::is_signed_by(&executor.0, DOMAIN, &body(&up, self.count), &self.signature)
    }
}

/// A statement with its proof, for anybody to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The statement.
    pub statement: Statement,
    /// The machine that signed it.
    pub executor: PeerId,
    proof: Proof,
}

#[derive(Serialize, Deserialize)]
struct ReceiptFields(
    u8,
    #[serde(with = "serde_bytes")] Vec<u8>,
    #[serde(with = "serde_bytes")] [u8; 32],
    #[serde(with = "serde_bytes")] Vec<u8>,
);

impl Receipt {
    /// A receipt of a statement, the machine that made it, and the proof.
    pub fn new(statement: Statement, executor: PeerId, proof: Proof) -> Self {
        Self { statement, executor, proof }
    }

    /// Whether the machine that it names signed it.
    pub fn holds(&self) -> bool {
        self.proof.holds(&self.statement, self.executor)
    }

    /// Its one encoding.
    pub fn encode(&self) -> Vec<u8> {
        let (statement, proof) = (self.statement.encode(), self.proof.encode());
        canonical::encode(&ReceiptFields(VERSION, statement, self.executor.0, proof))
    }

    /// Reads a receipt and checks that the machine named in it signed it.
    ///
    /// # Errors
    /// When it is not the one encoding of a receipt of this version, or that machine did not sign it.
    pub fn verify(bytes: &[u8]) -> Result<Self, Malformed> {
        let ReceiptFields(version, statement, executor, proof) = canonical::decode(bytes, RECEIPT_BYTES_MAX)?;
        let (statement, proof) = (Statement::decode(&statement)?, Proof::decode(&proof)?);
        let executor = PeerId(executor);
        if version != VERSION || !proof.holds(&statement, executor) {
            return Err(Malformed);
        }
        Ok(Self { statement, executor, proof })
    }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;
    use crate::identity;

    fn statement(index: u64) -> Statement {
        Statement {
            grid: GridId([1; 32]),
            bag: [2; 32],
            index,
            attempt: 3,
            program: [4; 32],
            input: [5; 32],
            output: [6; 32],
            ending: Ending::Succeeded,
            exit_code: Some(0),
            work_kop: 1_234_567,
        }
    }

    fn machine(seed: u8) -> (ed25519::Keypair, PeerId) {
        let key = Keypair::ed25519_from_bytes([seed; 32]).expect("any bytes are a key");
        let peer = identity::peer_id(&key).expect("it is Ed25519");
        (key.try_into_ed25519().expect("it is Ed25519"), peer)
    }

    #[test]
    fn each_receipt_of_a_batch_is_checked_alone() {
        let ((key, executor), (_, other)) = (machine(1), machine(2));
        for count in [1, 2, 3, 4, 5, 7, 8, 64, 511, 512] {
            let statements: Vec<Statement> = (0..count).map(statement).collect();
            let batch = Batch::new(&statements);
            let signature = batch.sign(&key);
            assert!(batch.is_signed_by(executor, &signature) && !batch.is_signed_by(other, &signature));
            for (position, statement) in statements.iter().enumerate() {
                let proof = batch.proof(position, signature);
                let decoded = Proof::decode(&proof.encode()).expect("its own encoding");
                let receipt = Receipt::new(statement.clone(), executor, decoded);
                assert_eq!(Receipt::verify(&receipt.encode()).as_ref(), Ok(&receipt), "{position} of {count}");
                let stolen = Receipt { executor: other, ..receipt.clone() };
                assert!(Receipt::verify(&stolen.encode()).is_err());
                let another = Receipt { statement: self::statement(count + 1), ..receipt };
                assert!(Receipt::verify(&another.encode()).is_err());
            }
        }
    }

    #[test]
    fn every_field_of_a_statement_is_signed() {
        let (key, executor) = machine(1);
        let statements = [statement(0), statement(1)];
        let batch = Batch::new(&statements);
        let proof = batch.proof(0, batch.sign(&key));
        let changes: [fn(&mut Statement); 10] = [
            |it| it.grid.0[0] ^= 1,
            |it| it.bag[0] ^= 1,
            |it| it.index += 1,
            |it| it.attempt += 1,
            |it| it.program[31] ^= 1,
            |it| it.input[31] ^= 1,
            |it| it.output[31] ^= 1,
            |it| it.ending = Ending::Failed,
            |it| it.exit_code = None,
            |it| it.work_kop += 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = statements[0].clone();
            change(&mut changed);
            let receipt = Receipt::new(changed, executor, proof.clone());
            assert!(Receipt::verify(&receipt.encode()).is_err(), "change {number}");
        }
    }

    #[test]
    fn any_flipped_bit_of_a_receipt_is_refused() {
        let (key, executor) = machine(1);
        let statements: Vec<Statement> = (0..5).map(statement).collect();
        let batch = Batch::new(&statements);
        let bytes = Receipt::new(statement(4), executor, batch.proof(4, batch.sign(&key))).encode();
        assert!(Receipt::verify(&bytes).is_ok());
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Receipt::verify(&changed).is_err(), "bit {bit}");
        }
        assert!(Receipt::verify(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn receipts_keep_their_bytes() {
        let (key, executor) = machine(1);
        let statements: Vec<Statement> = (0..3).map(statement).collect();
        let batch = Batch::new(&statements);
        let receipt = Receipt::new(statement(1), executor, batch.proof(1, batch.sign(&key)));
        insta::assert_snapshot!(hex::encode(receipt.encode()));
    }

    #[test]
    fn mutations_of_receipts() {
        let (key, executor) = machine(1);
        let statements: Vec<Statement> = (0..9).map(statement).collect();
        let batch = Batch::new(&statements);
        let receipt = Receipt::new(statement(8), executor, batch.proof(8, batch.sign(&key))).encode();
        idlewood_testing::mutations("receipt", vec![receipt.clone()], |bytes| {
            let is_one = Receipt::verify(bytes).is_ok();
            assert!(!is_one || bytes == receipt);
            is_one
        });
    }
}

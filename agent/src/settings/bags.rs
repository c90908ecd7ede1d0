//! Whose bags, and which programs, an owner allows on their machine.

use blake3::Hash;
use idlewood_overlay::PeerId;
use idlewood_scheduler::Config;
use idlewood_units::Span;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use idlewood_trust::identity;

use super::values::{self, Within};

/// Which bags may run here. Denial wins; an empty list of allowed ones allows all. The machine's own bags are always
/// allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bags {
    /// Machines whose bags may run here; none: those of all submitters of the grid.
    #[serde(deserialize_with = "values::list")]
    pub allow_submitters: Vec<Machine>,
    /// Machines whose bags may not.
    #[serde(deserialize_with = "values::list")]
    pub deny_submitters: Vec<Machine>,
    /// Programs that may run here, by hash; none: all.
    #[serde(deserialize_with = "values::list")]
    pub allow_programs: Vec<Program>,
    /// Programs that may not.
    #[serde(deserialize_with = "values::list")]
    pub deny_programs: Vec<Program>,
    /// Whether native programs may run, in a sandbox with one wall fewer than WebAssembly has.
    #[serde(deserialize_with = "values::yes_or_no")]
    pub native: bool,
    /// How much of this machine endless bags have, in percent, while tasks of other bags wait here.
    #[serde(deserialize_with = "values::percent")]
    pub endless_share: Within<0, 90>,
    /// Most work of one submitter that waits and runs here, by the time that this machine takes for it.
    #[serde(deserialize_with = "work")]
    pub work_per_submitter: Span,
}

impl Default for Bags {
    fn default() -> Self {
        Self {
            allow_submitters: Vec::new(),
            deny_submitters: Vec::new(),
            allow_programs: Vec::new(),
            deny_programs: Vec::new(),
            native: false,
            endless_share: Within(25),
            work_per_submitter: Span(Config::default().submitter_work_max),
        }
    }
}

fn work<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span = Span::deserialize(deserializer)?;
    match (Config { submitter_work_max: span.0, ..Config::default() }).validate() {
        Ok(()) => Ok(span),
        Err(_) => Err(D::Error::custom(format!(
            "{span} is not allowed: write a duration from 1h to 3650d, for example \"90d\""
        ))),
    }
}

/// A machine by its id, as `idlewood status` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Machine(pub PeerId);

/// A program by its BLAKE3, as `b3sum` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Program(pub Hash);

/// Why a bag does not run here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// bags.deny_submitters or bags.allow_submitters.
    #[error("the owner does not let bags of its submitter run here")]
    Submitter,
    /// bags.deny_programs or bags.allow_programs.
    #[error("the owner does not let its program run here")]
    Program,
    /// bags.native, or the system confines no native programs.
    #[error("no native programs run here (bags.native is not set, or the system cannot confine them)")]
    Native,
}

impl Bags {
    /// The owner's objection to a bag, native or not.
    pub fn objection(&self, submitter: PeerId, program: Hash, native: bool) -> Option<Objection> {
        if native && !self.native {
            return Some(Objection::Native);
        }
        let (submitter, program) = (Machine(submitter), Program(program));
        let is_allowed = |allowed: bool, nobody_named: bool| allowed || nobody_named;
        if self.deny_submitters.contains(&submitter)
            || !is_allowed(self.allow_submitters.contains(&submitter), self.allow_submitters.is_empty())
        {
            return Some(Objection::Submitter);
        }
        if self.deny_programs.contains(&program)
            || !is_allowed(self.allow_programs.contains(&program), self.allow_programs.is_empty())
        {
            return Some(Objection::Program);
        }
        None
    }
}

impl TryFrom<String> for Machine {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let peer = text.parse().ok().as_ref().and_then(identity::from_libp2p);
        peer.map(Self)
            .ok_or_else(|| format!("{text:?} is no machine's id: write it as `idlewood status` shows it, 12D3KooW..."))
    }
}

impl From<Machine> for String {
    fn from(machine: Machine) -> Self {
        identity::to_libp2p(machine.0).to_string()
    }
}

impl TryFrom<String> for Program {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Hash::from_hex(&text)
            .map(Self)
            .map_err(|_| format!("{text:?} is no program's hash: write its BLAKE3 as `b3sum` prints it, 64 digits"))
    }
}

impl From<Program> for String {
    fn from(program: Program) -> Self {
        program.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;

    use super::*;

    #[test]
    fn denial_wins_and_an_empty_list_allows_all() {
        let [one, other] = [(); 2].map(|()| identity::peer_id(&Keypair::generate_ed25519()).unwrap());
        let (good, bad) = (blake3::hash(b"good"), blake3::hash(b"bad"));
        let all = Bags::default();
        assert_eq!(all.objection(one, good, false), None);
        assert_eq!(all.objection(one, good, true), Some(Objection::Native));
        assert_eq!(Bags { native: true, ..Bags::default() }.objection(one, good, true), None);
        let denied = Bags { deny_submitters: vec![Machine(one)], ..Bags::default() };
        assert_eq!(denied.objection(one, good, false), Some(Objection::Submitter));
        assert_eq!(denied.objection(other, good, false), None);
        let allowed = Bags { allow_submitters: vec![Machine(one)], ..Bags::default() };
        assert_eq!(
            (allowed.objection(one, bad, false), allowed.objection(other, bad, false)),
            (None, Some(Objection::Submitter))
        );
        let both = Bags { allow_submitters: vec![Machine(one)], ..denied };
        assert_eq!(both.objection(one, good, false), Some(Objection::Submitter));
        let programs = Bags { deny_programs: vec![Program(bad)], ..Bags::default() };
        assert_eq!(
            (programs.objection(one, good, false), programs.objection(one, bad, false)),
            (None, Some(Objection::Program))
        );
        let programs = Bags { allow_programs: vec![Program(good)], ..Bags::default() };
        assert_eq!(
            (programs.objection(one, good, false), programs.objection(one, bad, false)),
            (None, Some(Objection::Program))
        );
    }

    #[test]
    fn lists_read_as_they_are_written_and_mistakes_are_reported() {
        let peer = identity::peer_id(&Keypair::generate_ed25519()).unwrap();
        let bags = Bags {
            deny_submitters: vec![Machine(peer)],
            allow_programs: vec![Program(blake3::hash(b""))],
            ..Bags::default()
        };
        let text = toml::to_string(&bags).unwrap();
        assert!(text.contains("12D3KooW"), "{text}");
        assert_eq!(toml::from_str::<Bags>(&text).unwrap(), bags);
        for (text, wanted) in [
            ("deny_submitters = [\"me\"]", "no machine's id"),
            ("deny_programs = [\"00\"]", "no program's hash"),
            ("deny = []", "unknown field"),
            ("work_per_submitter = \"1s\"", "from 1h"),
        ] {
            let error = toml::from_str::<Bags>(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}

//! A scenario: what both the real agents and the simulation are made from.

use std::path::Path;

use serde::Deserialize;

/// Speed of all machines, in Mop/s, unless they have another: real ones are told so instead of measuring theirs.
pub(crate) const SPEED_MOPS: f64 = 1_000.0;

const SHIPPED: &[&str] = &[
    include_str!("scenarios/pair.toml"),
    include_str!("scenarios/bags.toml"),
    include_str!("scenarios/slots.toml"),
    include_str!("scenarios/slow-link.toml"),
    include_str!("scenarios/outputs.toml"),
    include_str!("scenarios/inputs.toml"),
    include_str!("scenarios/crash.toml"),
    include_str!("scenarios/restart.toml"),
    include_str!("scenarios/owners.toml"),
    include_str!("scenarios/partition.toml"),
    include_str!("scenarios/shares.toml"),
    include_str!("scenarios/loss.toml"),
];

/// All that come with this program.
///
/// # Errors
/// A sentence about the first that is wrong.
pub(crate) fn shipped() -> Result<Vec<Scenario>, String> {
    SHIPPED.iter().map(|text| Scenario::parse(text)).collect()
}

/// One scenario. Times are in seconds after the grid has formed and settled; machines are numbered from 0.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name, and one sentence about it.
    pub(crate) name: String,
    pub(crate) about: String,
    /// Whether it belongs to the short form.
    #[serde(default)]
    pub(crate) short: bool,
    /// How many machines.
    pub(crate) machines: u32,
    /// Tasks that each runs at the same time.
    #[serde(default = "one")]
    pub(crate) slots: u32,
    /// One way, between any two machines.
    #[serde(default)]
    pub(crate) latency_ms: u64,
    /// Frames that are lost on their way, in percent, below 50.
    #[serde(default)]
    pub(crate) loss_percent: f64,
    /// Of each uplink and of each downlink; none: as fast as the kernel is.
    #[serde(default)]
    pub(crate) rate_kbit_s: Option<u64>,
    /// Shortest lease.
    #[serde(default = "lease")]
    pub(crate) lease_s: u64,
    /// How long the grid settles before the first bag.
    #[serde(default = "settle")]
    pub(crate) settle_s: u64,
    /// Machines with links or processors of their own.
    #[serde(default)]
    pub(crate) machine: Vec<OneMachine>,
    /// In the order of their times.
    pub(crate) bag: Vec<Bag>,
    #[serde(default)]
    pub(crate) crash: Vec<Crash>,
    #[serde(default)]
    pub(crate) owner: Vec<Owner>,
    #[serde(default)]
    pub(crate) partition: Vec<Partition>,
    /// What is known to differ, and why: the names of figures, or their beginnings, and a sentence.
    #[serde(default)]
    pub(crate) differs: Vec<Differs>,
}

/// A machine with links or a processor of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneMachine {
    pub(crate) number: u32,
    /// Replaces the scenario's rate, both ways.
    #[serde(default)]
    pub(crate) rate_kbit_s: Option<u64>,
    /// Its agent and workers get so much of one processor, and its speed is that part of [`SPEED_MOPS`]: for tasks that compute.
    #[serde(default)]
    pub(crate) processor_percent: Option<u64>,
}

/// A bag.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bag {
    #[serde(default)]
    pub(crate) at_s: f64,
    #[serde(default)]
    pub(crate) submitter: u32,
    pub(crate) tasks: u64,
    /// How long a task takes on a machine of [`SPEED_MOPS`].
    pub(crate) task_s: f64,
    /// Each task leaves a file of so many bytes, beside its usual output.
    #[serde(default)]
    pub(crate) output_bytes: u64,
    /// All tasks have one input of so many bytes.
    #[serde(default)]
    pub(crate) input_bytes: u64,
    /// Tasks compute instead of sleeping.
    #[serde(default)]
    pub(crate) computes: bool,
}

/// A power cut.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Crash {
    pub(crate) machine: u32,
    pub(crate) at_s: f64,
    /// When it is switched on again; none: never.
    #[serde(default)]
    pub(crate) back_s: Option<f64>,
}

/// An owner who uses their machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owner {
    pub(crate) machine: u32,
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
}

/// Some machines are cut off from the others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Partition {
    pub(crate) machines: Vec<u32>,
    pub(crate) from_s: f64,
    pub(crate) to_s: f64,
}

/// Figures that are known to differ.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Differs {
    pub(crate) figures: Vec<String>,
    pub(crate) because: String,
}

/// Something that happens at a moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deed {
    Submit(usize),
    /// For so long; none: for good.
    Crash {
        machine: u32,
        down_s: Option<f64>,
    },
    Back(u32),
    Owner {
        machine: u32,
        here: bool,
    },
    CutOff(Vec<u32>),
    Heal,
}

fn one() -> u32 {
    1
}

fn lease() -> u64 {
    60
}

fn settle() -> u64 {
    10
}

impl Scenario {
    /// Reads one from a file.
    ///
    /// # Errors
    /// A sentence that says what is wrong in which line.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
        Self::parse(&text).map_err(|sentence| format!("{name}: {sentence}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        scenario.check().map_err(|sentence| format!("{}: {sentence}", scenario.name))?;
        Ok(scenario)
    }

    fn check(&self) -> Result<(), String> {
        let check = |valid: bool, sentence: &str| if valid { Ok(()) } else { Err(sentence.to_owned()) };
        check((2..=200).contains(&self.machines), "machines must be between 2 and 200")?;
        check((1..=64).contains(&self.slots), "slots must be between 1 and 64")?;
        check((0.0..50.0).contains(&self.loss_percent), "loss_percent must be at least 0 and below 50")?;
        check(!self.bag.is_empty(), "there must be at least one [[bag]]")?;
        check(self.bag.is_sorted_by_key(|bag| bag.at_s as u64), "bags must be in the order of at_s")?;
        let bags = self.bag.iter().map(|bag| bag.submitter);
        let own = self.machine.iter().map(|machine| machine.number);
        let faults = self.crash.iter().map(|crash| crash.machine).chain(self.owner.iter().map(|owner| owner.machine));
        let cut = self.partition.iter().flat_map(|partition| partition.machines.iter().copied());
        let all = bags.chain(own).chain(faults).chain(cut).all(|machine| machine < self.machines);
        check(all, "machines are numbered from 0 to one below their number")?;
        let positive = |bag: &Bag| bag.tasks > 0 && bag.task_s > 0.0 && bag.at_s >= 0.0;
        check(self.bag.iter().all(positive), "each bag needs at least one task that takes some time")?;
        let is_computed = self.machine.iter().any(|machine| machine.processor_percent.is_some());
        check(
            !is_computed || self.bag.iter().all(|bag| bag.computes),
            "processor_percent is for tasks that compute: write computes = true in each bag",
        )?;
        check(
            self.bag.iter().all(|bag| bag.input_bytes == self.input_bytes()),
            "all bags must have the same input_bytes: simnet knows one for all",
        )?;
        check(self.partition.len() <= 1, "there can be one [[partition]] at most")
    }

    /// All that happens, in the order of time.
    pub(crate) fn deeds(&self) -> Vec<(f64, Deed)> {
        let mut deeds: Vec<(f64, Deed)> =
            self.bag.iter().enumerate().map(|(number, bag)| (bag.at_s, Deed::Submit(number))).collect();
        for Crash { machine, at_s, back_s } in &self.crash {
            deeds.push((*at_s, Deed::Crash { machine: *machine, down_s: back_s.map(|back_s| back_s - at_s) }));
            deeds.extend(back_s.map(|back_s| (back_s, Deed::Back(*machine))));
        }
        for Owner { machine, from_s, to_s } in &self.owner {
            deeds.push((*from_s, Deed::Owner { machine: *machine, here: true }));
            deeds.push((*to_s, Deed::Owner { machine: *machine, here: false }));
        }
        for Partition { machines, from_s, to_s } in &self.partition {
            deeds.push((*from_s, Deed::CutOff(machines.clone())));
            deeds.push((*to_s, Deed::Heal));
        }
        deeds.sort_by(|one, other| one.0.total_cmp(&other.0));
        deeds
    }

    /// What is written of one machine alone.
    pub(crate) fn one(&self, number: u32) -> Option<&OneMachine> {
        self.machine.iter().find(|machine| machine.number == number)
    }

    /// Rate of the links of a machine, in bytes a second.
    pub(crate) fn rate_bytes_s(&self, number: u32) -> Option<u64> {
        let own = self.one(number).and_then(|machine| machine.rate_kbit_s);
        own.or(self.rate_kbit_s).map(|rate| rate * 1_000 / 8)
    }

    /// Speed of a machine.
    pub(crate) fn speed_mops(&self, number: u32) -> f64 {
        let percent = self.one(number).and_then(|machine| machine.processor_percent);
        percent.map_or(SPEED_MOPS, |percent| SPEED_MOPS * percent as f64 / 100.0)
    }

    /// Size of the input that all tasks have.
    pub(crate) fn input_bytes(&self) -> u64 {
        self.bag.first().map_or(0, |bag| bag.input_bytes)
    }

    /// Work of a bag's tasks.
    pub(crate) fn task_mops(bag: &Bag) -> f64 {
        bag.task_s * SPEED_MOPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_with_the_program_can_be_read_and_has_names_of_its_own() {
        let all = shipped().unwrap();
        let names: std::collections::BTreeSet<_> = all.iter().map(|of| of.name.clone()).collect();
        assert!(all.len() >= 8 && names.len() == all.len(), "{names:?}");
        assert!(all.iter().any(|of| of.short));
    }
}

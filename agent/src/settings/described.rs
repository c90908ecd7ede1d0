//! What each setting means, for people: `idlewood config describe`, and the example in the sentence about a mistake.
//!
//! The types of `settings` say what is allowed, their defaults what holds; a test compares the keys.

use std::collections::BTreeMap;

use serde::Serialize;

/// One setting, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name: table and key.
    pub key: &'static str,
    /// The effect.
    pub meaning: &'static str,
    /// Unit and range of its value.
    pub takes: &'static str,
    /// What holds while it is not set, where it has no default value.
    pub unset: Option<&'static str>,
    /// A value as one would give it to `config set`.
    pub example: &'static str,
    /// Whether an agent reads it only when it starts.
    pub at_start: bool,
    /// The environment variable of `idlewood run` that overrides it.
    pub variable: Option<&'static str>,
}

const DURATION: &str = "a duration from 1s to 1d: 90s, 10min, 1h30m";
const SIZE: &str = "a size: 512M, 2GB, 1.5G (powers of 1024)";
const RATE: &str = "bytes per second, at least 64K: 512K, 2MB/s (powers of 1024)";
const YES: &str = "true or false (also yes or no)";

/// All settings, in the order of the file.
pub const ALL: &[Description] = &[
    live("owner.idle", "How long you give no input before tasks may run", DURATION, "10min"),
    live(
        "owner.vacate",
        "How long you are back before tasks that have not begun, or have a checkpoint, go back to their submitters",
        DURATION,
        "20min",
    ),
    live("owner.on_battery", "Whether tasks may run on battery", YES, "yes"),
    live(
        "owner.foreign_cpu_percent",
        "How much of all processors your programs may use while tasks run; above it tasks stand still",
        "a share from 1% to 100%; 100%: tasks never stand still for it",
        "50%",
    ),
    live(
        "owner.programs",
        "Programs that make all tasks stand still while one of them runs",
        "names of programs, several with commas between",
        "steam,obs",
    ),
    live(
        "owner.hours",
        "Hours at which tasks may run, in local time; none: all",
        "hours, several with commas between: 22:00-07:00, 12-13:30",
        "22:00-07:00",
    ),
    live(
        "owner.days",
        "Days on which tasks may run; none: all",
        "days, several with commas between: mon-fri, sun",
        "sat,sun",
    ),
    starting("limits.slots", "How many tasks run at the same time", "a whole number from 1 to 1024", "4"),
    without(
        live("limits.memory", "Most memory of all tasks together, those that stand still included", SIZE, "2GB"),
        "three quarters of the machine's memory",
    ),
    live(
        "limits.task_time",
        "Longest that a task may run, whatever its bag says; time that it stands still does not count",
        "a duration from 1s to 3650d",
        "12h",
    ),
    live(
        "limits.disk",
        "Most disk space for programs, inputs and results; as much again for the files of each task that runs",
        SIZE,
        "20GB",
    ),
    live(
        "limits.keep",
        "How many bags of others this machine keeps, so that they outlive their submitters' machines; their files count against limits.disk; bags that are too many go to others",
        "a whole number from 0 to 4096; 0: none",
        "16",
    ),
    live(
        "limits.checkpoint",
        "Largest checkpoint that goes with a task to another machine; a task with a larger one stays here",
        "a size of at most 256M",
        "128M",
    ),
    live(
        "limits.output",
        "Largest output of a task that runs here, printed text included; a task with a larger one is tried on other machines",
        "a size from 4K to 256M",
        "16M",
    ),
    without(live("limits.upload", "Most that others get of programs, inputs and results", RATE, "1MB/s"), "any rate"),
    without(live("limits.download", "Most that is fetched of programs, inputs and results", RATE, "2MB/s"), "any rate"),
    starting(
        "limits.strict_sandbox",
        "Whether the agent refuses to run where the system lacks part of the sandbox around tasks",
        YES,
        "yes",
    ),
    live(
        "limits.idle.cpu_percent",
        "How much of a processor each task may use while you are away",
        "a share from 1% to 100%",
        "80%",
    ),
    live(
        "limits.in_use.cpu_percent",
        "How much of a processor each task may use while you are there",
        "a share from 0% to 100%; 0%: tasks stand still",
        "20%",
    ),
    without(
        live(
            "limits.in_use.memory",
            "Most memory of all tasks while you are there; the task that takes more ends, and begins again later",
            SIZE,
            "512M",
        ),
        "as limits.memory",
    ),
    without(live("limits.in_use.upload", "As limits.upload, while you are there", RATE, "256K"), "as limits.upload"),
    without(
        live("limits.in_use.download", "As limits.download, while you are there", RATE, "256K"),
        "as limits.download",
    ),
    live(
        "bags.allow_submitters",
        "Machines whose bags may run here; none: those of all submitters of the grid",
        "ids of machines as `idlewood status` has them, several with commas between",
        "12D3KooWAqiQEXXBNvkP8sc5q4YgcbUq9YaKNEXpYKpYvWmqtdGT",
    ),
    live(
        "bags.deny_submitters",
        "Machines whose bags may not run here",
        "ids of machines as `idlewood status` has them, several with commas between",
        "12D3KooWAqiQEXXBNvkP8sc5q4YgcbUq9YaKNEXpYKpYvWmqtdGT",
    ),
    live(
        "bags.allow_programs",
        "Programs that may run here; none: all",
        "BLAKE3 of programs as `b3sum` prints it, several with commas between",
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    ),
    live(
        "bags.deny_programs",
        "Programs that may not run here",
        "BLAKE3 of programs as `b3sum` prints it, several with commas between",
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    ),
    live("bags.native", "Whether native programs may run, where the system can confine them", YES, "yes"),
    starting(
        "bags.endless_share",
        "How much of this machine endless bags have while tasks of other bags wait; they have all that these leave; the same on all machines of a grid",
        "a share from 0% to 90%",
        "50%",
    ),
    starting(
        "bags.work_per_submitter",
        "Most work of one submitter that waits and runs here, as the time that this machine takes for it",
        "a duration from 1h to 3650d",
        "7d",
    ),
    live(
        "submit.stewards",
        "How many other machines keep a bag submitted here, so that it goes on while this machine is off",
        "a whole number from 0 to 4",
        "3",
    ),
    without(
        live(
            "submit.tickets",
            "Directory for a ticket of each bag that others keep, to adopt the bag with if this machine is lost; from the next start on others are asked after 2 s already",
            "the whole path of a directory",
            "/home/ada/synced",
        ),
        "no tickets",
    ),
    overridden(
        starting(
            "network.listen",
            "Where other agents reach this one, once its machine belongs to a grid; none: loopback only",
            "addresses, several with commas between: 0.0.0.0:4001, [::]:4001",
            "0.0.0.0:4001",
        ),
        "IDLEWOOD_LISTEN",
    ),
    overridden(
        starting(
            "network.bootstrap",
            "Agents to join the grid through, beside those that this machine knows",
            "addresses, several with commas between: lab-pc:4001, 192.0.2.7:4001",
            "lab-pc:4001",
        ),
        "IDLEWOOD_BOOTSTRAP",
    ),
    without(
        starting(
            "network.name",
            "What members of the grid see this machine as in `idlewood machines` and beside their tasks",
            "text of up to 64 bytes",
            "lab-pc",
        ),
        "the host's name",
    ),
];

const fn live(key: &'static str, meaning: &'static str, takes: &'static str, example: &'static str) -> Description {
    Description { key, meaning, takes, unset: None, example, at_start: false, variable: None }
}

const fn starting(key: &'static str, meaning: &'static str, takes: &'static str, example: &'static str) -> Description {
    Description { at_start: true, ..live(key, meaning, takes, example) }
}

const fn without(setting: Description, unset: &'static str) -> Description {
    Description { unset: Some(unset), ..setting }
}

const fn overridden(setting: Description, variable: &'static str) -> Description {
    Description { variable: Some(variable), ..setting }
}

/// The settings that `name` means: one by its key, or those of a table.
///
/// # Errors
/// A sentence with the key that was probably meant, if there is none of that name.
pub fn named(name: &str) -> Result<Vec<&'static Description>, String> {
    let of_table = |key: &str| key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let found: Vec<&Description> = ALL.iter().filter(|setting| of_table(setting.key)).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    Err(unknown(name))
}

/// The setting with this key.
///
/// # Errors
/// A sentence with the key that was probably meant.
pub fn one(key: &str) -> Result<&'static Description, String> {
    ALL.iter().find(|setting| setting.key == key).ok_or_else(|| unknown(key))
}

fn unknown(name: &str) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let near = |setting: &&Description| distance(setting.key, name).min(distance(&last(setting.key), &last(name)));
    match ALL.iter().min_by_key(near).filter(|setting| near(setting) <= 2) {
        Some(meant) => format!("there is no setting {name:?}; did you mean {}?", meant.key),
        None => format!("there is no setting {name:?}; `idlewood config describe` lists all"),
    }
}

/// How many characters one has to insert, remove or replace to get one text from the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, character) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], number + 1);
        for column in 1..row.len() {
            let replaced = diagonal + usize::from(other[column - 1] != character);
            diagonal = row[column];
            row[column] = replaced.min(diagonal + 1).min(row[column - 1] + 1);
        }
    }
    row[other.len()]
}

/// The values of all [`Settings`](super::Settings) that have one, by key, as the file has them.
pub fn values(settings: &impl Serialize) -> BTreeMap<String, toml::Value> {
    fn collect(table: &toml::Table, prefix: &str, values: &mut BTreeMap<String, toml::Value>) {
        for (name, value) in table {
            match value {
                toml::Value::Table(inner) => collect(inner, &format!("{prefix}{name}."), values),
                value => {
                    values.insert(format!("{prefix}{name}"), value.clone());
                }
            }
        }
    }
    let mut values = BTreeMap::new();
    // Settings are a table of plain values, which TOML can express.
    let table = toml::Table::try_from(settings).unwrap_or_default();
    collect(&table, "", &mut values);
    values
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Settings;
    use super::*;

    #[test]
    fn every_setting_is_described_and_its_example_is_allowed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config.toml");
        for setting in ALL {
            let set = super::super::set(&path, setting.key, setting.example);
            let set = set.unwrap_or_else(|error| panic!("{}: {error}", setting.key));
            assert!(values(&set).contains_key(setting.key), "{}", setting.key);
            assert_ne!(values(&set).get(setting.key), values(&Settings::default()).get(setting.key), "{}", setting.key);
            assert!(setting.unset.is_none() == values(&Settings::default()).contains_key(setting.key));
        }
        // With all examples set, all settings are there.
        let described: BTreeSet<String> = ALL.iter().map(|setting| setting.key.to_owned()).collect();
        let all: BTreeSet<String> = values(&super::super::load(&path).expect("it is good")).into_keys().collect();
        assert_eq!(described, all);
    }

    #[test]
    fn a_setting_is_found_by_its_key_and_a_mistyped_one_is_guessed() {
        assert_eq!(one("owner.idle").expect("it is there").example, "10min");
        assert_eq!(named("limits.in_use").expect("a table").len(), 4);
        assert_eq!(named("owner").expect("a table").len(), 7);
        for (name, meant) in [("owner.idel", "did you mean owner.idle?"), ("hours", "did you mean owner.hours?")] {
            let sentence = one(name).expect_err("no such setting");
            assert!(sentence.ends_with(meant), "{sentence}");
        }
        assert!(named("own").expect_err("no table").contains("config describe"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

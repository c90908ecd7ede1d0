//! The bags that a command is about.

use std::str::FromStr;

use idlewood_api::Bag;
use idlewood_api::client::{Client, ClientError};
use idlewood_units::Numbers;

use super::context::BadUsage;
use crate::output;

/// Longest name of a bag on the command line.
const NAME_BYTES_MAX: usize = 1000;
/// Stands for every bag for which the command makes sense.
const ALL: &str = "all";

/// The bags that a command is about; without any, the last.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WhichBags {
    /// Their ids, unique beginnings of them, names, `last`, or `all`
    #[arg(value_name = "BAG", default_value = "last")]
    ids: Vec<BagName>,
}

/// The bags that a command is about, which have to be named.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TheseBags {
    /// Their ids, unique beginnings of them, names, `last`, or `all`
    #[arg(value_name = "BAG", required = true, allow_negative_numbers = true)]
    ids: Vec<BagName>,
}

/// Bags that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// What the agent finds each by.
    pub(super) ids: Vec<String>,
    /// Whether the user named one bag: what is printed of it as JSON is no list.
    pub(super) is_one: bool,
}

/// A bag as users name it: the beginning of its id, its name, or `last`. The agent finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BagName(pub(super) String);

impl FromStr for BagName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
            Ok(Self(text.to_owned()))
        } else {
            Err("use the beginning of a bag's id, or its name, as `idlewood bag list` shows them, or `last`".to_owned())
        }
    }
}

impl Found {
    /// Does this for each bag: what is wrong with one keeps nothing from the others. Returns what came of those with which nothing is wrong,
    /// and what is wrong with the others, for [`first_of`].
    ///
    /// # Errors
    /// What is wrong with the one bag that the user named.
    pub(super) fn each<T>(
        &self,
        mut act: impl FnMut(&str) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Vec<T>, Vec<anyhow::Error>)> {
        let (mut all, mut errors) = (Vec::new(), Vec::new());
        for id in &self.ids {
            match act(id) {
                Ok(one) => all.push(one),
                Err(error) if self.is_one => return Err(error),
                Err(error) => errors.push(error.context(format!("bag {}", output::short_id(id)))),
            }
        }
        Ok((all, errors))
    }
}

/// What is wrong with some of several bags: the first ends the command, the others are told.
///
/// # Errors
/// The first, if there is one.
pub(super) fn first_of(errors: Vec<anyhow::Error>) -> anyhow::Result<()> {
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    errors.try_for_each(|error| output::notice(&format!("{error:#}")))?;
    Err(first)
}

impl WhichBags {
    /// As [`TheseBags::find`].
    pub(super) fn find(&self, client: &Client, of_all: impl Fn(&Bag) -> bool) -> Result<Found, ClientError> {
        find(&self.ids, client, of_all)
    }
}

impl TheseBags {
    /// Finds them, before anything is done to any; of `all` those to which this applies.
    ///
    /// # Errors
    /// [`ClientError`]; where one is not there, or can be several.
    pub(super) fn find(&self, client: &Client, of_all: impl Fn(&Bag) -> bool) -> Result<Found, ClientError> {
        find(&self.ids, client, of_all)
    }
}

/// As [`TheseBags::find`].
pub(super) fn find(names: &[BagName], client: &Client, of_all: impl Fn(&Bag) -> bool) -> Result<Found, ClientError> {
    if let [BagName(name)] = names
        && name != ALL
    {
        return Ok(Found { ids: vec![name.clone()], is_one: true });
    }
    let mut ids: Vec<String> = Vec::new();
    for BagName(name) in names {
        let found = if name == ALL {
            client.bags()?.into_iter().filter(&of_all).map(|bag| bag.id).collect()
        } else {
            vec![client.bag(name)?.bag.id]
        };
        let new: Vec<String> = found.into_iter().filter(|id| !ids.contains(id)).collect();
        ids.extend(new);
    }
    Ok(Found { ids, is_one: false })
}

/// Refuses indices that the bag does not have.
pub(super) fn check(bag: &Bag, chosen: &Numbers) -> Result<(), BadUsage> {
    let Some(beyond) = chosen.iter().find(|&index| index >= bag.tasks) else { return Ok(()) };
    let (id, last) = (output::short_id(&bag.id), bag.tasks.saturating_sub(1));
    Err(BadUsage(format!("bag {id} has no task {beyond}: its last is {last}")))
}

#[cfg(test)]
mod tests {
    use super::super::context::BadUsage;
    use super::*;

    #[test]
    fn names_of_bags() {
        for text in ["ab12", "last", "night run", "../x", "é"] {
            assert_eq!(text.parse(), Ok(BagName(text.to_owned())));
        }
        for text in ["", "a\nb", &"a".repeat(1001)] {
            assert!(text.parse::<BagName>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn what_is_wrong_with_one_bag_keeps_nothing_from_the_others() {
        fn act(id: &str) -> anyhow::Result<usize> {
            if id == "bad" { Err(BadUsage("it has no such task".to_owned()).into()) } else { Ok(id.len()) }
        }
        let found = |ids: &[&str], is_one| Found { ids: ids.iter().map(|&id| id.to_owned()).collect(), is_one };
        let (all, errors) = found(&["a", "bad", "abc"], false).each(act).expect("it goes on");
        assert_eq!(all, [1, 3]);
        let error = first_of(errors).expect_err("one is bad");
        assert!(error.is::<BadUsage>(), "its exit code is that of what is wrong");
        assert_eq!(format!("{error:#}"), "bag bad: it has no such task");
        assert!(found(&["bad"], true).each(act).is_err());
        let (all, errors) = found(&["a"], true).each(act).expect("it is fine");
        assert!(all == [1] && first_of(errors).is_ok());
    }
}

//! The bag that a command is about.

use std::str::FromStr;

/// The bag that a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WhichBag {
    /// Its id, a unique prefix of it, or `last`
    #[arg(value_name = "ID", default_value = "last")]
    pub(super) id: BagName,
}

/// A bag as users name it: hexadecimal digits from the beginning of its id, or `last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BagName(pub(super) String);

impl FromStr for BagName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.to_ascii_lowercase();
        let is_prefix = (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_prefix || name == "last" {
            Ok(Self(name))
        } else {
            Err("use the beginning of a bag's id, as `idlewood bag list` shows it, or `last`".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_bags() {
        assert_eq!("AB12".parse(), Ok(BagName("ab12".to_owned())));
        assert_eq!("last".parse(), Ok(BagName("last".to_owned())));
        for text in ["", "latest", "../x", "ab 1", "é", &"a".repeat(65)] {
            assert!(text.parse::<BagName>().is_err(), "{text:?} was taken");
        }
    }
}

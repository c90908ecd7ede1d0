//! Surveys of home computers and their links: cores by Valve's survey of its users, bandwidths by the Global Index of
//! speedtest.net.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::distribution::Distribution;
use crate::input::{self, Malformed, Named, malformed};

/// How many computers have how many cores.
#[derive(Clone, Debug, PartialEq)]
pub struct Cores(Distribution);

/// Most cores of a computer, as many as a machine may have slots.
const CORES_MAX: u32 = 1_024;
/// Category of the lines of text that say how many cores computers have.
const CATEGORY: &str = "Physical CPUs";
/// Name of the line for computers of unknown cores.
const UNSPECIFIED: &str = "Unspecified";
/// Beginning of a heading.
const HEADING: &str = "date";

/// Fields of a line, separated by commas; one in quotation marks may contain commas.
fn fields(line: &str) -> Vec<&str> {
    let mut is_quoted = false;
    let ends = |letter: char| {
        is_quoted ^= letter == '"';
        letter == ',' && !is_quoted
    };
    line.split(ends).map(|field| field.trim().trim_matches('"')).collect()
}

/// Whether this is a year, a month and a day, as in 2026-04-01.
fn is_date(text: &str) -> bool {
    let is_number = |part: &str, digits: usize, most: u32| {
        let number =
            part.parse().ok().filter(|_| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()));
        number.is_some_and(|number: u32| (1..=most).contains(&number))
    };
    let parts: Vec<&str> = text.split('-').collect();
    matches!(parts[..], [year, month, day] if is_number(year, 4, 9_999) && is_number(month, 2, 12) && is_number(day, 2, 31))
}

impl Cores {
    /// Reads a survey, plain or compressed by gzip.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        input::read(path, "give a survey with lines of date,category,name,change,share", Self::parse)
    }

    /// Parses a survey: of its last month the lines of physical processors, such as `2026-04-01,Physical CPUs,8
    /// cpus,0.01,0.27`. Other lines are skipped, and so is a heading.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        // By date.
        let mut months: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
        for (number, line) in input::lines(text) {
            let fields = fields(line);
            let &[date, category, name, _, share] = fields.as_slice() else {
                return malformed(
                    number,
                    format!("{} fields where 5 are expected: date,category,name,change,share", fields.len()),
                );
            };
            if number == 1 && date == HEADING {
                continue;
            }
            // Dates are compared as text.
            if !is_date(date) {
                return malformed(number, format!("{date} is not a date such as 2026-04-01"));
            }
            if category != CATEGORY || name == UNSPECIFIED {
                continue;
            }
            let cores = name.split(' ').next().and_then(|cores| cores.parse().ok());
            let Some(cores) = cores.filter(|cores| (1..=CORES_MAX).contains(cores)) else {
                return malformed(number, format!("{name} is not a number of cpus between 1 and {CORES_MAX}"));
            };
            let Some(share) = share.parse().ok().filter(|share| (0.0..=1.0).contains(share)) else {
                return malformed(number, format!("{share} is not a share between 0 and 1"));
            };
            *months.entry(date).or_default().entry(cores).or_insert(0.0) += share;
        }
        let Some((date, last)) = months.pop_last() else {
            return Err(Malformed::whole(format!("it has no line of {CATEGORY}")));
        };
        let all: f64 = last.values().sum();
        // Shares are rounded.
        if !(0.9..=1.1).contains(&all) {
            return Err(Malformed::whole(format!("the shares of {CATEGORY} of {date} come to {all} and not to 1")));
        }
        let shares: Vec<(f64, f64)> = last.into_iter().map(|(cores, share)| (f64::from(cores), share)).collect();
        Ok(Self(Distribution::of_shares(&shares)))
    }

    /// The number of cores below which this share of all computers, in [0, 1), is.
    pub fn quantile(&self, share: f64) -> u32 {
        self.0.quantile(share) as u32
    }
}

/// Bandwidths of places, up and down, in bytes a second.
#[derive(Clone, Debug, PartialEq)]
pub struct Bandwidths {
    /// In the order of the places' names.
    places: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    countries: Named<Place>,
    #[serde(default)]
    cities: Named<Place>,
}

#[derive(Deserialize)]
struct Place {
    up_mbits: MbitS,
    down_mbits: MbitS,
}

/// A number; some are written as text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a number of Mb/s")]
enum MbitS {
    Number(f64),
    Text(String),
}

impl MbitS {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.trim().parse().ok(),
        }
    }
}

/// Largest bandwidth, in Mb/s.
const MBIT_S_MAX: f64 = 1e6;

impl Bandwidths {
    /// Reads an index, plain or compressed by gzip.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        input::read(path, "give bandwidths of countries and cities as JSON", Self::parse)
    }

    /// Parses an index: the mean bandwidths of cities, or without these of countries.
    ///
    /// # Errors
    /// What is wrong, and in which line or place.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let expected = "{\"countries\": {name: {\"up_mbits\": …, \"down_mbits\": …}}, \"cities\": the same}";
        let index: Index = input::json(text, expected)?;
        let Named(places) = if index.cities.0.is_empty() { index.countries } else { index.cities };
        if places.is_empty() {
            return Err(Malformed::whole("there is no country and no city in it"));
        }
        let bytes_s = |name: &str, bandwidth: &MbitS| match bandwidth.number() {
            Some(mbit_s) if mbit_s > 0.0 && mbit_s <= MBIT_S_MAX => Ok(((mbit_s * 125_000.0) as u64).max(1)),
            _ => {
                let sentence = format!("{name}: a bandwidth is not a number above 0 and at most {MBIT_S_MAX}, in Mb/s");
                Err(Malformed::whole(sentence))
            }
        };
        let of =
            |(name, place): (&String, &Place)| Ok((bytes_s(name, &place.up_mbits)?, bytes_s(name, &place.down_mbits)?));
        Ok(Self { places: places.iter().map(of).collect::<Result<_, _>>()? })
    }

    /// Bandwidths of a place drawn by a share in [0, 1).
    pub fn draw(&self, share: f64) -> (u64, u64) {
        let at = (share * self.places.len() as f64) as usize;
        self.places[at.min(self.places.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_those_of_the_last_month() {
        let text = "date,category,name,change,percentage\n\
            2026-03-01,Physical CPUs,1 cpu,,1.0\n\
            2026-04-01,Physical CPUs,8 cpus,0.1,0.5\n\
            2026-04-01,Network Speed,\"10 Mbps, or more\",,0.4\n\
            2026-04-01,Physical CPUs,4 cpus,,0.3\n\
            2026-04-01,Physical CPUs,96 cpus,,0.0\n\
            2026-04-01,Physical CPUs,Unspecified,,0.02\n\
            2026-04-01,Physical CPUs,10 cpus,,0.19\n";
        let cores = Cores::parse(text).unwrap();
        assert_eq!([0.0, 0.3, 0.31, 0.8, 0.81, 0.9999].map(|share| cores.quantile(share)), [4, 4, 8, 8, 10, 10]);
        let line = "2026-04-01,Physical CPUs,";
        for (text, sentence) in [
            (format!("{line}1 cpu\n"), "line 1: 3 fields where 5 are expected"),
            (format!("{line}many,,0.5\n"), "line 1: many is not a number of cpus"),
            (format!("\n{line}0 cpus,,0.5\n"), "line 2: 0 cpus is not a number of cpus"),
            (format!("{line}1 cpu,,1.5\n"), "line 1: 1.5 is not a share"),
            (format!("{line}1 cpu,,0.5\n"), "of 2026-04-01 come to 0.5 and not to 1"),
            ("date,category,name,change,share\n".to_owned(), "it has no line of Physical CPUs"),
            (format!("{line}1 cpu,,1.0\ngarbage line\n"), "line 2: 1 fields where 5 are expected"),
            (format!("{line}1 cpu,,1.0\n2026-04-01,RAM,8 G"), "line 2: 3 fields where 5 are expected"),
            (format!("{line}1 cpu,,1.0\n2026-04-01,RAM,\"8 GB,,1.0\n"), "line 2: 3 fields where 5 are expected"),
            (format!("{line}1 cpu,,1.0\n04/01/2026,RAM,8 GB,,1.0\n"), "line 2: 04/01/2026 is not a date"),
            (format!("{line}1 cpu,,1.0\n2026-13-01,RAM,8 GB,,1.0\n"), "line 2: 2026-13-01 is not a date"),
            (format!("{line}1 cpu,,1.0\ndate,category,name,change,share\n"), "line 2: date is not a date such as"),
        ] {
            let error = Cores::parse(&text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }

    #[test]
    fn bandwidths_are_those_of_cities_or_else_of_countries() {
        let cities = r#"{"countries": {"A": {"up_mbits": 1, "down_mbits": 2}},
            "cities": {"b": {"up_mbits": 8, "down_mbits": 16.0}, "a": {"up_mbits": "0.5", "down_mbits": 4, "id": 7}}}"#;
        let bandwidths = Bandwidths::parse(cities).unwrap();
        assert_eq!([0.0, 0.99].map(|share| bandwidths.draw(share)), [(62_500, 500_000), (1_000_000, 2_000_000)]);
        let countries = r#"{"countries": {"A": {"up_mbits": 1, "down_mbits": 2}}}"#;
        assert_eq!(Bandwidths::parse(countries).map(|found| found.draw(0.5)), Ok((125_000, 250_000)));
        for (text, sentence) in [
            ("{}", "there is no country and no city in it"),
            (r#"{"cities": {"b": {"up_mbits": 1, "down_mbits": "fast"}}}"#, "b: a bandwidth is not a number above 0"),
            (r#"{"cities": {"a": {"up_mbits": 0, "down_mbits": 2}}}"#, "a: a bandwidth is not a number above 0"),
            ("{\"cities\":\n{\"a\": {\"up_mbits\": 1}}}", "line 2: missing field `down_mbits`"),
            (
                "{\"cities\": {\"a\": {\"up_mbits\": 1, \"down_mbits\": 2},\n\"a\": {\"up_mbits\": 3, \"down_mbits\": 4}}}",
                "line 2: a is in it twice",
            ),
        ] {
            let error = Bandwidths::parse(text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }
}

//! Processor load of real machines: every five minutes of a day, as CoMon measured it on PlanetLab.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::input::{self, Malformed, malformed};

/// Time between two values.
const TICK: Duration = Duration::from_secs(300);

/// The load of each machine, in percent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessorLoad {
    machines: Vec<Vec<u8>>,
}

impl ProcessorLoad {
    /// Reads a day, plain or compressed by gzip.
    ///
    /// # Errors
    /// A sentence with the file, the line where there is one, and what is expected there.
    pub fn read(path: &Path) -> Result<Self, String> {
        input::read(
            path,
            "give a line for each machine: its number, and its load in percent every five minutes",
            Self::parse,
        )
    }

    /// Parses a day: a line for each machine, its number and then as many values as the others have.
    ///
    /// # Errors
    /// The flaw, and its line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut machines: Vec<Vec<u8>> = Vec::new();
        let mut names = BTreeSet::new();
        for (number, line) in input::lines(text).filter(|(_, line)| !line.starts_with('#')) {
            let percent = |field: &str| match field.parse::<u8>() {
                Ok(percent) if percent <= 100 => Ok(percent),
                _ => malformed(number, format!("{field} is not a load from 0 to 100 percent")),
            };
            let mut fields = line.split_whitespace();
            let name = fields.next().unwrap_or_default();
            let Ok(machine) = name.parse::<u64>() else {
                return malformed(number, format!("{name} is not a machine's number"));
            };
            if !names.insert(machine) {
                return malformed(number, format!("machine {machine} has a line before this one"));
            }
            let loads: Vec<u8> = fields.map(percent).collect::<Result<_, _>>()?;
            let expected = machines.first().map_or(loads.len(), Vec::len);
            if loads.is_empty() || loads.len() != expected {
                return malformed(
                    number,
                    format!(
                        "{} values where {} are expected behind the machine's number",
                        loads.len(),
                        expected.max(1)
                    ),
                );
            }
            machines.push(loads);
        }
        if machines.is_empty() {
            return Err(Malformed::whole("there is no machine in it"));
        }
        Ok(Self { machines })
    }

    /// Number of machines.
    pub fn machines(&self) -> u32 {
        self.machines.len() as u32
    }

    /// Its length.
    pub fn span(&self) -> Duration {
        TICK * self.machines[0].len() as u32
    }

    /// Share of the time that machine number `machine`, modulo their number, is above so many percent, or was so less than `after`
    /// ago.
    pub fn share_after(&self, machine: u32, percent: u8, after: Duration) -> f64 {
        let loads = self.loads(machine);
        let is_above = |tick: usize| loads[tick % loads.len()] > percent;
        let of_tick = |tick: usize| {
            let below = (0..loads.len()).take_while(|back| !is_above(tick + loads.len() - back)).count();
            match below {
                0 => TICK,
                _ if below == loads.len() => Duration::ZERO,
                _ => after.saturating_sub(TICK * (below as u32 - 1)).min(TICK),
            }
        };
        let all: Duration = (0..loads.len()).map(of_tick).sum();
        all.as_secs_f64() / self.span().as_secs_f64()
    }

    /// Time from `at` until the load of that machine is above so many percent, or not above: zero if it is now, `None`
    /// if it never is. The day is repeated for ever.
    pub fn until(&self, machine: u32, percent: u8, above: bool, at: Duration) -> Option<Duration> {
        let loads = self.loads(machine);
        let within = Duration::from_micros((at.as_micros() % self.span().as_micros()) as u64);
        let now = (within.as_micros() / TICK.as_micros()) as usize;
        let ahead = (0..loads.len()).find(|ahead| (loads[(now + ahead) % loads.len()] > percent) == above)?;
        Some((TICK * (now + ahead) as u32).saturating_sub(within))
    }

    fn loads(&self, machine: u32) -> &[u8] {
        &self.machines[machine as usize % self.machines.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_day_is_repeated() {
        let day = ProcessorLoad::parse("0 10 50 51 0\n7 0 0 0 0\n").unwrap();
        assert_eq!(
            (day.span(), day.share_after(2, 50, Duration::ZERO), day.share_after(1, 0, seconds(900))),
            (seconds(1_200), 0.25, 0.0)
        );
        for (at, above, expected) in [
            (0, true, 600),
            (0, false, 0),
            (450, true, 150),
            (700, true, 0),
            (700, false, 200),
            (900, true, 900),
            (1_250, true, 550),
        ] {
            assert_eq!(day.until(0, 50, above, seconds(at)), Some(seconds(expected)), "{above} after {at}");
        }
        assert_eq!(day.until(1, 0, true, seconds(5)), None);
    }

    #[test]
    fn flaws_are_named_with_their_line() {
        for (text, sentence) in [
            ("0 10 20\n1 10\n", "line 2: 1 values where 2 are expected"),
            ("0\n", "line 1: 0 values where 1 are expected"),
            ("0 101\n", "line 1: 101 is not a load"),
            ("0 ten\n", "line 1: ten is not a load"),
            ("# nothing\n", "there is no machine in it"),
            ("0 3 4\nfoo 3 4\n", "line 2: foo is not a machine's number"),
            ("7 3 4\n8 3 4\n7 3 4\n", "line 3: machine 7 has a line before this one"),
        ] {
            let error = ProcessorLoad::parse(text).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error} for {text}");
        }
    }
}

//! Which files of a task are its output: those that match a pattern (`submit --output-files`).
//!
//! `*` and `?` stand for characters of one name, `**` for folders, `[ab]` and `{a,b}` for one of several. Matching takes time linear in the
//! path, whatever a pattern says.

use globset::{Glob, GlobBuilder, GlobMatcher};
use idlewood_trust::manifest::{Entry, Fields, Manifest, Rounds, filled_with};

/// The patterns of one task, and what they matched.
#[derive(Debug)]
pub(crate) struct Chosen {
    patterns: Vec<GlobMatcher>,
    matched: Vec<bool>,
}

/// Reads a pattern.
///
/// # Errors
/// A sentence, where it is none.
pub(crate) fn pattern(text: &str) -> Result<Glob, String> {
    let built = GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build();
    built.map_err(|error| format!("{text:?} is no pattern of files: {}", error.kind()))
}

/// The patterns of a task, filled in: what stands for a place stands for itself.
pub(crate) fn patterns(manifest: &Manifest, index: u64) -> Vec<String> {
    let (entry, fields, rounds) = (manifest.entry(index), manifest.fields.as_ref(), manifest.rounds.as_ref());
    manifest.outputs.iter().map(|text| filled(text, index, &entry, fields, rounds)).collect()
}

fn filled(text: &str, index: u64, entry: &Entry, fields: Option<&Fields>, rounds: Option<&Rounds>) -> String {
    filled_with(text, index, entry, fields, rounds, globset::escape)
}

impl Chosen {
    /// Files that match one of these patterns.
    ///
    /// # Errors
    /// A sentence, where one is no pattern.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, String> {
        let read = patterns.iter().map(|text| pattern(text).map(|glob| glob.compile_matcher()));
        let patterns: Vec<GlobMatcher> = read.collect::<Result<_, _>>()?;
        Ok(Self { matched: vec![false; patterns.len()], patterns })
    }

    /// Whether a file is chosen, by its path in the working directory; every file is where there is no pattern.
    pub(crate) fn takes(&mut self, path: &str) -> bool {
        let mut takes = self.patterns.is_empty();
        for (pattern, matched) in self.patterns.iter().zip(&mut self.matched) {
            if pattern.is_match(path) {
                (takes, *matched) = (true, true);
            }
        }
        takes
    }

    /// The first pattern that no file has matched.
    pub(crate) fn unmatched(&self) -> Option<&str> {
        let unmatched = self.patterns.iter().zip(&self.matched).find(|(_, matched)| !**matched);
        unmatched.map(|(pattern, _)| pattern.glob().glob())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(patterns: &[&str]) -> Chosen {
        Chosen::new(&patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).expect("patterns")
    }

    #[test]
    fn patterns_choose_files() {
        assert!(chosen(&[]).takes("any/file"), "without any all are taken");
        let mut some = chosen(&["out/*.csv", "**/log", "r[0-9].{dat,txt}"]);
        let taken = ["out/a.csv", "log", "deep/er/log", "r1.dat", "r2.txt"];
        assert!(taken.iter().all(|path| some.takes(path)));
        assert!(!["out/deep/a.csv", "a.csv", "out/a.csv.tmp", "rx.dat", "logs"].iter().any(|path| some.takes(path)));
        assert_eq!(some.unmatched(), None);
        let mut some = chosen(&["a", "b*"]);
        assert!(some.takes("a"));
        assert_eq!(some.unmatched(), Some("b*"));
        for bad in ["a[", "{a", "a\\"] {
            assert!(pattern(bad).is_err_and(|why| why.contains("no pattern")), "{bad}");
        }
    }

    /// An entry is data: its stars are no pattern.
    #[test]
    fn what_is_filled_in_stands_for_itself() {
        let entry = Entry { text: "a*[1]".to_owned(), input: None };
        let mut some = chosen(&[&filled("result-{index}-{}.dat", 0, &entry, None, None), "*.log"]);
        assert!(some.takes("result-0-a*[1].dat") && some.takes("x.log"));
        assert!(!some.takes("result-0-abc1.dat"));
    }

    /// Matchers that go back and try again take longer than anybody waits.
    #[test]
    fn a_hostile_pattern_takes_no_time() {
        let mut hostile = chosen(&[&"*a".repeat(100)]);
        assert!(hostile.takes(&"a".repeat(250)));
        assert!(!hostile.takes(&("a".repeat(250) + "b")));
    }
}

//! Endless bags: which options make one, and what does not go with it.

use std::path::Path;

use idlewood_api::{EndlessRequest, SubmitRequest};
use idlewood_scheduler::{WEIGHT_MAX, WEIGHT_MIN};
use idlewood_trust::manifest::{Entry, Fields, Source};
use idlewood_units::Array;

use super::error::SubmitError;
use super::options::Options;

/// What these options say of an endless bag; `None`: they make one with an end.
///
/// # Errors
/// Where something is missing, or does not go with it.
pub(super) fn request(options: &Options) -> Result<Option<EndlessRequest>, SubmitError> {
    let wrong = |sentence: &str| Err(SubmitError::Value(sentence.to_owned()));
    if !options.endless {
        return match (options.share, &options.watch) {
            (Some(_), _) => wrong("share is the weight of an endless bag: add endless, or leave it out"),
            (None, Some(_)) => wrong("files are waited for by an endless bag: add --endless, or name them with --glob"),
            (None, None) => Ok(None),
        };
    }
    let share = options.share.unwrap_or(1.0);
    if !(WEIGHT_MIN..=WEIGHT_MAX).contains(&share) {
        return Err(SubmitError::Value(format!(
            "a share of {share} makes no sense: give {WEIGHT_MIN} to {WEIGHT_MAX}"
        )));
    }
    if options.sources() > 1 {
        return wrong("an endless bag has one source of tasks: --array 0-, --each-line -, or --watch DIR");
    }
    let source = match (&options.array, &options.each_line, &options.watch) {
        (Some(Array::From { first, step }), ..) => Source::Range { first: *first, step: *step },
        (Some(Array::Some(_)), ..) => {
            return wrong("an endless bag has an array without an end: write --array 0-, or leave out --endless");
        }
        (None, Some(path), _) if path == Path::new("-") => Source::Lines,
        (None, Some(_), _) => {
            return wrong("an endless bag reads lines as they are written into a pipe: write --each-line -");
        }
        (None, None, Some(directory)) => {
            check_directory(directory)?;
            Source::Files
        }
        _ => {
            return wrong(
                "say what the tasks of an endless bag are: --array 0-, --each-line - for lines of a pipe, or --watch DIR for files",
            );
        }
    };
    if options.replicas.is_some_and(|replicas| replicas > 1) {
        return wrong("--endless does not go with --replicas: each task of an endless bag runs once");
    }
    if !matches!(source, Source::Range { .. }) && options.stewards.is_some_and(|stewards| stewards > 0) {
        return wrong(
            "--stewards does not go with lines and files that come one by one: they are on this machine alone, and so nobody else can go on with them; an array without an end has stewards",
        );
    }
    Ok(Some(EndlessRequest { share, source }))
}

fn check_directory(directory: &Path) -> Result<(), SubmitError> {
    match std::fs::read_dir(directory) {
        Ok(_) => Ok(()),
        Err(source) => Err(SubmitError::File { what: "directory to watch", path: directory.to_owned(), source }),
    }
}

/// How the lines of an endless bag are cut into fields.
pub(super) fn fields(options: &Options) -> Option<Fields> {
    let separator = options.colsep.as_ref()?.replace("\\t", "\t");
    (!separator.is_empty()).then(|| Fields { separator, names: Vec::new() })
}

/// The entry of a task of an endless bag, as far as it is known before it is submitted.
pub(super) fn entry(index: u64, request: &SubmitRequest) -> Option<Entry> {
    match request.endless?.source {
        Source::Range { first, step } => {
            let text = first.saturating_add(index.saturating_mul(step)).to_string();
            Some(Entry { text, input: None })
        }
        Source::Lines | Source::Files => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(array: Option<&str>, line: Option<&str>) -> Options {
        let array = array.map(|array| array.parse().unwrap());
        Options { endless: true, array, each_line: line.map(Into::into), ..Options::default() }
    }

    #[test]
    fn an_endless_bag_has_a_source_without_an_end() {
        let of = |options: &Options| request(options).map(|request| request.map(|request| request.source));
        assert_eq!(of(&options(Some("5-:2"), None)).unwrap(), Some(Source::Range { first: 5, step: 2 }));
        assert_eq!(of(&options(None, Some("-"))).unwrap(), Some(Source::Lines));
        assert_eq!(of(&Options::default()).unwrap(), None);
        let plain = || options(Some("0-"), None);
        let here = || Options { endless: true, watch: Some(".".into()), ..Options::default() };
        assert_eq!(of(&here()).unwrap(), Some(Source::Files));
        for wrong in [
            Options { watch: Some("/nonexistent/nowhere".into()), ..here() },
            Options { watch: Some("/etc/passwd".into()), ..here() },
            Options { endless: false, ..here() },
            Options { glob: Some("*".to_owned()), ..here() },
            options(Some("0-9"), None),
            options(None, Some("file")),
            options(None, None),
            Options { share: Some(0.0), ..plain() },
            Options { share: Some(f64::NAN), ..plain() },
            Options { replicas: Some(2), ..plain() },
            Options { stewards: Some(1), ..here() },
            Options { glob: Some("*".to_owned()), ..plain() },
            Options { endless: false, share: Some(2.0), ..plain() },
        ] {
            assert!(request(&wrong).is_err(), "{wrong:?}");
        }
    }
}

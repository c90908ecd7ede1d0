//! What comes with the tasks of an endless bag, and is no part of its manifest: a line of a pipe, or a file of a directory.
//!
//! Both travel as one line of text with the request for the task (docs/adr/0049). Whoever submits may send anything: a file is checked here
//! as those of a manifest are, and again where files are laid out.

use super::{Entry, INPUT_BYTES_MAX, Manifest, ManifestError, Source, is_file_name};

impl Manifest {
    /// Whether each task comes with a line.
    pub fn has_lines(&self) -> bool {
        matches!(self.source, Some(Source::Lines | Source::Files))
    }

    /// Whether each task comes with a file.
    pub fn has_files(&self) -> bool {
        self.source == Some(Source::Files)
    }

    /// The entry that a line stands for.
    ///
    /// # Errors
    /// [`ManifestError`] with a sentence, where no task of this bag can have it.
    pub fn entry_of_line(&self, line: String) -> Result<Entry, ManifestError> {
        if !self.has_files() {
            return Ok(Entry { text: line, input: None });
        }
        let entry: Entry = serde_json::from_str(&line)
            .map_err(|error| ManifestError::Invalid(format!("what came with a task is no file: {error}")))?;
        let invalid = |sentence: String| Err(ManifestError::Invalid(sentence));
        let Some(input) = &entry.input else {
            return invalid("a task of a bag of files has no file".to_owned());
        };
        if !is_file_name(&input.name) || entry.text.contains('\0') {
            return invalid(format!("{:?} cannot be the name of a file: rename it", input.name));
        }
        if input.bytes > INPUT_BYTES_MAX {
            return invalid(format!("{} is over {} GiB: split it", input.name, INPUT_BYTES_MAX >> 30));
        }
        let mut shared = self.inputs.iter().map(|shared| &shared.name).chain(&self.folders);
        if shared.any(|name| name.split('/').next() == Some(input.name.as_str())) {
            return invalid(format!("an input that all tasks share is named {:?}, too: rename the file", input.name));
        }
        Ok(entry)
    }

    /// This manifest, of an endless bag whose tasks come with lines, with the line of one task.
    ///
    /// # Errors
    /// [`ManifestError`], as [`Self::entry_of_line`].
    pub fn with_line(&self, index: u64, line: String) -> Result<Self, ManifestError> {
        Ok(Self { line: Some((index, self.entry_of_line(line)?)), ..self.clone() })
    }

    /// The text of a task's entry, whose line this is if it came with one.
    pub fn text_of(&self, index: u64, line: Option<String>) -> String {
        let of_line = line.and_then(|line| self.entry_of_line(line).ok());
        of_line.unwrap_or_else(|| self.entry(index)).text
    }
}

#[cfg(test)]
mod tests {
    use idlewood_scheduler::{BAG_TASKS_MAX, BlobId};

    use super::super::tests::manifest;
    use super::super::{Input, MANIFEST_VERSION_ENDLESS};
    use super::*;

    fn watched() -> Manifest {
        Manifest {
            version: MANIFEST_VERSION_ENDLESS,
            tasks: BAG_TASKS_MAX,
            entries: Vec::new(),
            source: Some(Source::Files),
            stdin: Some("{}".to_owned()),
            ..manifest()
        }
    }

    fn line(name: &str, bytes: u64) -> String {
        let input = Some(Input { name: name.to_owned(), blob: BlobId([4; 32]), bytes });
        serde_json::to_string(&Entry { text: format!("in/{name}"), input }).expect("it can be written")
    }

    #[test]
    fn a_file_that_comes_with_a_task_is_its_input() {
        let bag = watched();
        assert_eq!(Manifest::decode(&bag.encode()).expect("it is sound"), bag);
        let task = bag.with_line(3, line("a b.dat", 7)).expect("it is a file");
        assert_eq!(task.fill("{} {index}", 3), "inputs/a b.dat 3");
        assert_eq!(task.task_stdin(3).as_deref(), Some("a b.dat"));
        let names: Vec<String> = task.task_inputs(3).into_iter().map(|input| input.name).collect();
        assert_eq!(names, ["shared", "a b.dat"]);
        assert_eq!(task.task_inputs(4).len(), 1, "another task has another file");
        assert_eq!(bag.text_of(3, Some(line("a b.dat", 7))), "in/a b.dat");
    }

    #[test]
    fn what_no_task_can_have_as_its_file_is_refused() {
        let bag = watched();
        let no_file = serde_json::to_string(&Entry { text: "a".to_owned(), input: None }).expect("it can be written");
        for bad in [
            line("../a", 1),
            line("sub/a", 1),
            line("", 1),
            line("shared", 1),
            line("a", INPUT_BYTES_MAX + 1),
            no_file,
            "a".to_owned(),
        ] {
            assert!(bag.entry_of_line(bad.clone()).is_err(), "{bad}");
        }
        let of_pipe = Manifest { source: Some(Source::Lines), stdin: None, ..watched() };
        assert_eq!(of_pipe.entry_of_line("../a".to_owned()).expect("it is text").text, "../a");
        let without = Manifest { stdin: Some("{}".to_owned()), ..of_pipe };
        assert!(without.validate().is_err(), "lines are no files");
    }
}

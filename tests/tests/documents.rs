//! Whatever code and documents cite exists: files, modules, decisions, links and their headings. And nothing cites a
//! place outside of the repository.
//!
//! A citation is a word with a path in it. Left out: names of modules without a path, which are not citations, and
//! citations of functions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Directories of generated files.
const BUILT: [&str; 2] = ["target", ".git"];
/// Files that are read: those with these endings, and scripts without one.
const ENDINGS: [&str; 8] = ["rs", "md", "toml", "service", "sh", "c", "wat", "json"];
const SCRIPTS: [&str; 6] = ["run", "purity", "simulation", "two-machines", "idle-footprint", "package"];
/// A test that reads programs and problems that are not ours to publish, if they are present.
const READS_ELSEWHERE: &str = "tests/tests/end_to_end/solver.rs";
/// Packages whose files are cited.
const PACKAGES: [&str; 5] = ["agent", "overlay", "scheduler", "simnet", "tests"];
const PARTS: [&str; 18] = [
    "src",
    "tests",
    "benches",
    "bench",
    "tasks",
    "scenarios",
    "fuzz",
    "api",
    "blobs",
    "machine",
    "net",
    "packaging",
    "sensing",
    "store",
    "testing",
    "trust",
    "units",
    "worker",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository").to_owned()
}

/// A text file: its path from the root, and its contents.
struct Text {
    path: PathBuf,
    content: String,
}

fn texts(directory: &Path, found: &mut Vec<Text>) {
    for entry in fs::read_dir(root().join(directory)).expect("it can be read").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = directory.join(&name);
        if entry.path().is_dir() {
            if !BUILT.contains(&name.as_str()) {
                texts(&path, found);
            }
        } else if (SCRIPTS.contains(&name.as_str())
            || ENDINGS.iter().any(|ending| name.ends_with(&format!(".{ending}"))))
            && let Ok(content) = fs::read_to_string(entry.path())
        {
            found.push(Text { path, content });
        }
    }
}

/// All text files but this one.
fn all() -> Vec<Text> {
    let mut found = Vec::new();
    texts(Path::new(""), &mut found);
    found.retain(|text| text.path != Path::new("tests/tests/documents.rs"));
    assert!(found.len() > 200, "the repository has texts: {}", found.len());
    found
}

/// `directory/path` without its dots.
fn plain(directory: &Path, path: &str) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in directory.join(path).components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// The words of a text that may be paths. A word that follows a variable is none.
fn words(content: &str) -> impl Iterator<Item = &str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_./-$".contains(c);
    let words = content.split(move |c| !is_path(c)).filter(|word| !word.contains('$'));
    words.map(|word| word.trim_end_matches(['.', '/', '-']))
}

/// A text without the labels of links, since their targets are checked.
fn without_labels(content: &str) -> String {
    let mut pieces: Vec<&str> = content.split("](").collect();
    let last = pieces.pop().unwrap_or_default();
    let kept = pieces.iter().map(|piece| piece.rfind('[').map_or(*piece, |label| &piece[..label]));
    kept.chain([last]).collect::<Vec<_>>().join(" ")
}

/// Whether a word is a citation of something missing.
fn is_missing(word: &str, directory: &Path) -> bool {
    let candidates = [PathBuf::from(word), plain(directory, word)].map(|path| root().join(path));
    let exists = || candidates.iter().any(|path| path.exists());
    let parts: Vec<&str> = word.split('/').collect();
    match parts.as_slice() {
        ["docs", "adr", number] if number.len() == 4 && number.parse::<u32>().is_ok() => {
            let decisions = fs::read_dir(root().join("docs/adr")).expect("there are decisions");
            !decisions.flatten().any(|file| file.file_name().to_string_lossy().starts_with(*number))
        }
        [package, part, _, ..] if PACKAGES.contains(package) && PARTS.contains(part) => {
            // Modules are cited without the ending of their file.
            let is_module = |path: &PathBuf| path.extension().is_none() && path.with_extension("rs").exists();
            !exists() && !candidates.iter().any(is_module)
        }
        ["docs", _, ..] => !exists(),
        [.., file] => file.len() > ".md".len() && file.ends_with(".md") && !exists(),
        [] => false,
    }
}

#[test]
fn all_citations_exist() {
    let mut missing = BTreeSet::new();
    for Text { path, content } in all() {
        let directory = path.parent().unwrap_or(Path::new(""));
        let content = without_labels(&content);
        let cited = words(&content).filter(|word| is_missing(word, directory));
        missing.extend(cited.map(|word| format!("{}: {word}", path.display())));
    }
    assert!(missing.is_empty(), "cited, and not there:\n{}", missing.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn nothing_outside_of_the_repository_is_cited() {
    let outside = all().into_iter().filter(|text| text.path != Path::new(READS_ELSEWHERE));
    let cite: Vec<_> = outside.filter(|text| text.content.contains("../shared")).map(|text| text.path).collect();
    assert!(cite.is_empty(), "{cite:?}");
}

/// The targets of a page's links, without those to other sites.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(' ')).collect()
}

/// The names by which a page's headings are linked to: lower case, letters, digits and hyphens.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|&c| c.is_alphanumeric() || c == '-' || c == '_').collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for Text { path, content } in all().into_iter().filter(|text| text.path.extension().is_some_and(|it| it == "md")) {
        for link in links(&content) {
            seen += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let directory = path.parent().unwrap_or(Path::new(""));
            let target = if file.is_empty() { root().join(&path) } else { root().join(plain(directory, file)) };
            let is_there = target.exists();
            let leads =
                anchor.is_empty() || fs::read_to_string(&target).is_ok_and(|page| anchors(&page).contains(anchor));
            if !is_there || !leads {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(seen > 50, "the documents link to each other: {seen}");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_page_of_the_guide_and_the_design_is_linked_from_its_index() {
    for directory in ["docs/guide", "docs/design"] {
        let index = fs::read_to_string(root().join(directory).join("README.md")).expect("there is an index");
        let linked = links(&index);
        for file in fs::read_dir(root().join(directory)).expect("it is there").flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            assert!(name == "README.md" || linked.contains(&name.as_str()), "{directory}/{name}");
        }
    }
}

#[test]
fn missing_citations_are_found() {
    let here = Path::new("docs/guide");
    for missing in
        ["design.md", "docs/none.md", "docs/adr/9999", "agent/src/none", "../shared/x.md", "tests/src/guide.c"]
    {
        assert!(is_missing(missing, here), "{missing}");
    }
    for there in ["README.md", "submit.md", "../adr", "docs/adr/0001", "overlay/src/lib.rs", "overlay/src/lib", "a/b"] {
        assert!(!is_missing(there, here), "{there}");
    }
    assert_eq!(links("[a](b.md#c) [d](https://e.f/g)"), ["b.md#c"]);
    assert_eq!(anchors("# A b: `c-d`\n"), BTreeSet::from(["a-b-c-d".to_owned()]));
}

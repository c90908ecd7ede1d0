//! The page of figures: complete, well-formed, nothing loaded from elsewhere, and figures visible in a real browser.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

/// Series in the figures have these colours, the first two of a palette for colour-blind people.
const BLUE: [u8; 3] = [0, 114, 178];
const VERMILION: [u8; 3] = [213, 94, 0];

/// A directory for one test.
struct Directory(PathBuf);

impl Directory {
    /// Makes it with the summaries of two experiments, one of them in a subdirectory.
    fn with_summaries(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("idlewood-page-{}-{name}", std::process::id()));
        std::fs::create_dir_all(path.join("inner")).expect("a new directory");
        let row = |nodes: u32, failures: &str, ratio: f64| {
            json!({
                "nodes": nodes, "failures": failures, "bag_interval_s": 10, "seeds": 3, "ratio_mincent_submitters": ratio,
                "ratio_mincent_submitters_ci95": [ratio - 0.05, ratio + 0.05], "ratio_fcfs": ratio / 4.0, "ratio_offline": ratio * 1.01,
                "ratio_fcfs_mincent": 4.1, "ratio_fcfs_mincent_ci95": [3.9, 4.3], "ratio_offline_mincent": 0.98,
            })
        };
        let rows =
            [row(50, "none", 1.02), row(200, "none", 1.05), row(50, "queue_lost", 1.2), row(200, "queue_lost", 1.3)];
        let fairness = json!({
            "experiment": "fairness", "command": "simnet reproduce fairness --nodes 50,200 --seed 1 --seeds 3",
            "commit": "0123456789", "seed": 1, "seeds": 3, "nodes": [50, 200], "complete": true, "rows": rows,
        });
        let bar = |variant: &str, ratio: f64| {
            json!({
                "nodes": 100, "failures": "none", "machines": "stay", "sizes": "log_uniform", "load": 0.7,
                "variant": variant, "seeds": 2, "ratio_mincent_submitters": ratio, "ratio_mincent_submitters_ci95": [ratio * 0.9, ratio * 1.1],
            })
        };
        let desktops = json!({
            "experiment": "desktops", "command": "simnet reproduce desktops", "commit": "0123456789", "seed": 1,
            "seeds": 2, "nodes": [100], "complete": false, "rows": [bar("ours", 0.95), bar("paper", 2.2), bar("no_preemption", 2.0)],
        });
        std::fs::write(path.join("fairness.json"), fairness.to_string()).expect("writable");
        std::fs::write(path.join("inner").join("desktops.json"), desktops.to_string()).expect("writable");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("it is there");
    }
}

/// Runs `simnet report`; the page and where it is.
fn report(directory: &Directory) -> (PathBuf, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_simnet")).arg("report").arg(&directory.0).output().expect("simnet starts");
    assert!(output.status.success(), "{output:?}");
    let path = PathBuf::from(String::from_utf8(output.stdout).expect("text").trim());
    let html = std::fs::read_to_string(&path).expect("the page that it named");
    (path, html)
}

/// Whether every element is closed in its turn; the first one that is not.
fn unbalanced(html: &str) -> Option<String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>")?;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>')?;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '\n', '/']).next().unwrap_or_default();
        if let Some(closed) = tag.strip_prefix('/') {
            if open.pop() != Some(closed) {
                return Some(format!("</{closed}> closes {open:?}"));
            }
        } else if !tag.ends_with('/') && name != "meta" {
            open.push(name);
        }
    }
    (!open.is_empty()).then(|| format!("{open:?} are never closed"))
}

#[test]
fn the_page_is_whole_and_loads_nothing() {
    let directory = Directory::with_summaries("whole");
    let (_, html) = report(&directory);
    assert_eq!(unbalanced(&html), None);
    for part in [
        "simnet reproduce fairness --nodes 50,200 --seed 1 --seeds 3",
        "Seeds 1 to 3, commit 0123456789",
        "Not complete",
        "<figcaption>",
        "no_preemption",
        "1.020 <small>[0.970, 1.070]</small>",
        "paper, no failures: at most",
        "4.100 <small>[3.900, 4.300]</small>",
        "FCFS, no failures",
    ] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<svg").count(), 2, "a figure of each");
    for link in ["src=", "href=", "@import", "url(", "<script"] {
        assert!(!html.contains(link), "the page loads something: {link}");
    }
}

#[test]
fn for_a_directory_without_summaries_the_error_says_what_to_run() {
    let directory = Directory::with_summaries("empty");
    for path in ["fairness.json", "inner/desktops.json"] {
        std::fs::remove_file(directory.0.join(path)).expect("it was there");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_simnet")).arg("report").arg(&directory.0).output().expect("simnet starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("simnet reproduce NAME"), "{output:?}");
}

#[test]
fn unreadable_summaries_are_left_out_and_named() {
    let directory = Directory::with_summaries("unreadable");
    // Root can read everything, but a link to itself fails for root, too.
    std::os::unix::fs::symlink("bound.json", directory.0.join("inner/bound.json")).expect("a link");
    let torn = "{ \"experiment\": \"updates\", \"rows\": [";
    for (name, text) in
        [("updates", torn), ("table1", "[]"), ("scale", "{\"rows\":5}"), ("submitters", "{\"rows\":[1]}")]
    {
        std::fs::write(directory.0.join(format!("{name}.json")), text).expect("writable");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_simnet")).arg("report").arg(&directory.0).output().expect("simnet starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let html = std::fs::read_to_string(directory.0.join("report.html")).expect("a page all the same");
    assert_eq!((unbalanced(&html), html.matches("<h2>").count()), (None, 2), "{html}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    for name in ["inner/bound.json", "updates.json", "table1.json", "scale.json", "submitters.json"] {
        for text in [&html, stderr.as_ref()] {
            assert!(text.contains(&format!("{name} cannot be read: ")), "{name}: {text}");
        }
    }
    assert_eq!(stderr.lines().count(), 5, "{stderr}");
}

#[test]
fn a_summary_of_something_else_is_ignored() {
    let directory = Directory::with_summaries("others");
    let overlay = json!({ "experiment": "overlay", "seed": 7, "seeds": 1, "complete": true, "height": 3 });
    let texts = [
        ("ours", overlay.to_string().into_bytes()),
        ("coverage", br#"{ "experiment": "crawl", "height": 5 }"#.to_vec()),
        ("list", b"[1, 2]".to_vec()),
        ("torn", b"{ \"experiment\": \"over".to_vec()),
        ("bytes", vec![0xff, 0xfe]),
    ];
    for (name, text) in texts {
        let inner = directory.0.join(name);
        std::fs::create_dir_all(&inner).expect("a new directory");
        std::fs::write(inner.join("summary.json"), text).expect("writable");
    }
    std::fs::create_dir_all(directory.0.join("deep/summary.json")).expect("a new directory");
    let (_, html) = report(&directory);
    assert_eq!((html.matches("<h2>").count(), html.matches("<h2>overlay</h2>").count()), (3, 1), "{html}");
    assert!(html.contains("<th>height</th><td>3</td>"), "{html}");
}

/// The browser, where one is installed.
fn browser() -> Option<&'static str> {
    let runs = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"].into_iter().find(runs)
}

/// How many pixels of a picture have each of these colours, and how many are not white.
fn pixels(path: &Path, colours: [[u8; 3]; 2]) -> ([usize; 2], usize) {
    let file = std::io::BufReader::new(std::fs::File::open(path).expect("a screenshot"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let frame = reader.next_frame(&mut bytes).expect("a picture");
    let width = frame.color_type.samples();
    let pixels = || bytes[..frame.buffer_size()].chunks_exact(width).map(|pixel| &pixel[..3]);
    (
        colours.map(|colour| pixels().filter(|pixel| **pixel == colour).count()),
        pixels().filter(|pixel| **pixel != [255; 3]).count(),
    )
}

#[test]
fn a_browser_shows_both_figures() {
    let Some(browser) = browser() else {
        assert!(std::env::var_os("CI").is_none(), "continuous integration has a browser");
        // Not through the captured output of tests: a skipped test must not look like a passed one.
        writeln!(std::io::stderr(), "SKIPPED a_browser_shows_both_figures: no chromium on PATH (apt install chromium)")
            .expect("stderr takes it");
        return;
    };
    let directory = Directory::with_summaries("browser");
    let (path, _) = report(&directory);
    let picture = directory.0.join("page.png");
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,2600"]);
    command.arg(format!("--user-data-dir={}", directory.0.join("profile").display()));
    command.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", path.display()));
    let output = command.output().expect("the browser starts");
    assert!(picture.exists(), "no screenshot: {output:?}");
    let ([blue, vermilion], not_white) = pixels(&picture, [BLUE, VERMILION]);
    // Lines, dots and legends of both figures; text and tables.
    assert!(blue > 500 && vermilion > 200, "{blue} blue and {vermilion} vermilion pixels");
    assert!(not_white > 20_000, "{not_white} pixels are not white");
}
